from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from random import Random
from unittest import mock

import pytest

from backend.api import StorageFull, Unavailable
from backend.journal.checkpoints import FILE_HEADER_BYTES, LocalPieces, PieceDamaged, PieceFile
from backend.journal.local.disk import Disk, RealDisk
from backend.journal.local.segments import SegmentFiles
from metadata_service.models import PieceRef
from tests.backend.journal.support import ROOT, sim_disk, virtual


def a_store(disk: Disk, root: str = ROOT) -> LocalPieces:
    files = SegmentFiles(disk, root)
    disk.mkdir(files.register(9, "n-9"))
    return LocalPieces(disk, files)


async def put(store: LocalPieces, pieces: list[bytes]) -> list[PieceRef]:
    writer = await store.begin(9)
    refs = [writer.add(piece) for piece in pieces]
    await writer.finish()
    return refs


PIECES = [b"", b"one", Random(1).randbytes(3_000_000), b"x" * 8]


async def stores_and_finds(store: LocalPieces) -> None:
    refs = await put(store, PIECES)
    more = await put(store, [b"later"])
    assert await store.get_many([*reversed(refs), *more]) == [*reversed(PIECES), b"later"]
    assert await store.get(refs[1]) == b"one"
    assert [(ref.log_id, ref.file, ref.length) for ref in refs] == [(9, 1, len(piece)) for piece in PIECES]
    assert [file[:2] for file in await store.list_files(9)] == [(9, 1), (9, 2)]
    await store.drop_file(9, 1)
    await store.drop_file(9, 1)
    assert [file[:2] for file in await store.list_files(9)] == [(9, 2)]
    with pytest.raises(PieceDamaged, match="missing"):
        await store.get(refs[1])


def test_on_a_simulated_disk() -> None:
    virtual(stores_and_finds(a_store(sim_disk())))


async def test_on_a_real_disk(tmp_path: Path) -> None:
    disk = RealDisk()
    await stores_and_finds(a_store(disk, str(tmp_path / "journal")))
    disk.close_workers()


def test_what_was_stored_outlives_a_power_cut_and_no_number_is_used_twice() -> None:
    async def main() -> None:
        for seed in range(10):
            disk = sim_disk(seed)
            refs = await put(a_store(disk), PIECES[:2])
            unfinished = asyncio.ensure_future(put(a_store(disk), [b"never named"]))
            await asyncio.sleep(0.002)
            disk.crash()
            unfinished.cancel()
            store = a_store(disk)
            assert await store.get_many(refs) == PIECES[:2]
            later = await put(store, [b"again"])
            assert later[0].file > refs[0].file
            assert await store.get_many([*refs, *later]) == [*PIECES[:2], b"again"]

    virtual(main())


def test_a_flipped_bit_is_reported_where_it_is() -> None:
    async def main() -> None:
        disk = sim_disk()
        store = a_store(disk)
        pieces = [b"first piece", b"second"]
        refs = await put(store, pieces)
        (path,) = (path for path in disk.paths() if "ckpt" in path)
        pristine = disk.contents(path)
        for at in range(FILE_HEADER_BYTES, len(pristine)):
            disk.overwrite(path, pristine)
            disk.flip_bit(path, at)
            for ref, piece in zip(refs, pieces, strict=True):
                if ref.offset <= at < ref.offset + 8 + ref.length:
                    with pytest.raises(PieceDamaged) as caught:
                        await store.get(ref)
                    assert (caught.value.file, caught.value.offset) == (path, ref.offset)
                else:
                    assert await store.get(ref) == piece
        disk.overwrite(path, pristine[:-12])
        with pytest.raises(PieceDamaged):
            await store.get(refs[1])
        disk.overwrite(path, pristine)
        passes = OSError(errno.EMFILE, "no descriptor")
        with mock.patch.object(disk, "open", side_effect=passes), pytest.raises(Unavailable):
            await store.get(refs[1])
        disk.unreadable.add(path)
        with pytest.raises(PieceDamaged, match="cannot be read"):
            await store.get(refs[1])

    virtual(main())


@pytest.mark.parametrize("case", ["full", "failing"])
def test_what_cannot_be_stored_leaves_nothing_behind(case: str) -> None:
    async def main() -> None:
        disk = sim_disk(capacity_bytes=10_000)
        store = a_store(disk)
        refs = await put(store, [b"kept"])
        disk.failing_syncs = 1 if case == "failing" else 0
        with pytest.raises(StorageFull if case == "full" else Unavailable):
            await put(store, [bytes(20_000 if case == "full" else 10)])
        assert [file for file in await store.list_files(9) if file.file != 1] == []
        assert await store.get(refs[0]) == b"kept"
        assert await store.list_files(9) == [PieceFile(9, 1, 40)]

    virtual(main())
