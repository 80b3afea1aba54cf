import asyncio
import errno
from pathlib import Path
from random import Random
from unittest import mock

import pytest

from backend.api import StorageFull, Unavailable
from backend.journal.checkpoints import ChunkDamaged, ChunkFile
from backend.journal.local.checkpoint_chunks import FILE_HEADER_BYTES, LocalChunks
from backend.journal.local.disk import Disk, RealDisk
from backend.journal.local.segments import SegmentFiles
from metadata_service.models import ChunkRef
from tests.backend.journal.support import ROOT, sim_disk, virtually


def a_store(disk: Disk, root: str = ROOT) -> LocalChunks:
    files = SegmentFiles(disk, root)
    disk.mkdir(files.register(9, "n-9"))
    return LocalChunks(disk, files)


async def put(store: LocalChunks, chunks: list[bytes]) -> list[ChunkRef]:
    writer = await store.create_file(9)
    refs = [writer.add(chunk) for chunk in chunks]
    await writer.finish()
    return refs


CHUNKS = [b"", b"one", Random(1).randbytes(3_000_000), b"x" * 8]


async def test_on_a_real_disk(tmp_path: Path) -> None:
    disk = RealDisk()
    store = a_store(disk, str(tmp_path / "journal"))
    refs = await put(store, CHUNKS)
    more = await put(store, [b"later"])
    assert await store.get_many([*reversed(refs), *more]) == [*reversed(CHUNKS), b"later"]
    assert await store.get(refs[1]) == b"one"
    assert [(ref.log_id, ref.file, ref.length) for ref in refs] == [(9, 1, len(chunk)) for chunk in CHUNKS]
    assert [file[:2] for file in await store.list_files(9)] == [(9, 1), (9, 2)]
    await store.drop_file(9, 1)
    await store.drop_file(9, 1)
    assert [file[:2] for file in await store.list_files(9)] == [(9, 2)]
    with pytest.raises(ChunkDamaged, match="missing"):
        await store.get(refs[1])
    disk.close_workers()


@virtually
async def test_stored_records_outlive_a_power_cut_and_no_number_is_used_twice() -> None:
    for seed in range(10):
        disk = sim_disk(seed)
        refs = await put(a_store(disk), CHUNKS[:2])
        unfinished = asyncio.ensure_future(put(a_store(disk), [b"never named"]))
        await asyncio.sleep(0.002)
        disk.crash()
        unfinished.cancel()
        store = a_store(disk)
        assert await store.get_many(refs) == CHUNKS[:2]
        later = await put(store, [b"again"])
        assert later[0].file > refs[0].file
        assert await store.get_many([*refs, *later]) == [*CHUNKS[:2], b"again"]


@virtually
async def test_a_flipped_bit_is_reported_where_it_is() -> None:
    disk = sim_disk()
    store = a_store(disk)
    chunks = [b"first piece", b"second"]
    refs = await put(store, chunks)
    (path,) = (path for path in disk.paths() if "ckpt" in path)
    pristine = disk.contents(path)
    for at in range(FILE_HEADER_BYTES, len(pristine)):
        disk.overwrite(path, pristine)
        disk.flip_bit(path, at)
        for ref, chunk in zip(refs, chunks, strict=True):
            if ref.offset <= at < ref.offset + 8 + ref.length:
                with pytest.raises(ChunkDamaged) as caught:
                    await store.get(ref)
                assert (caught.value.file, caught.value.offset) == (path, ref.offset)
            else:
                assert await store.get(ref) == chunk
    disk.overwrite(path, pristine[:-12])
    with pytest.raises(ChunkDamaged):
        await store.get(refs[1])
    disk.overwrite(path, pristine)
    passes = OSError(errno.EMFILE, "no descriptor")
    with mock.patch.object(disk, "open", side_effect=passes), pytest.raises(Unavailable):
        await store.get(refs[1])
    disk.unreadable.add(path)
    with pytest.raises(ChunkDamaged, match="cannot be read"):
        await store.get(refs[1])


@pytest.mark.parametrize("case", ["full", "failing"])
@virtually
async def test_a_failed_store_leaves_nothing_behind(case: str) -> None:
    disk = sim_disk(capacity_bytes=10_000)
    store = a_store(disk)
    refs = await put(store, [b"kept"])
    disk.failing_syncs = 1 if case == "failing" else 0
    with pytest.raises(StorageFull if case == "full" else Unavailable):
        await put(store, [bytes(20_000 if case == "full" else 10)])
    assert [file for file in await store.list_files(9) if file.file != 1] == []
    assert await store.get(refs[0]) == b"kept"
    assert await store.list_files(9) == [ChunkFile(9, 1, 40)]
