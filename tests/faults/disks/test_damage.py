"""Bit rot: damage is reported with file and offset, and the rest is served."""

import asyncio
import os

import pytest

from backend.journal.local.segments import segment_name
from tests.faults.tools import places
from tests.faults.tools.bodies import body_of
from tests.faults.tools.client import CallRefused, Client, url_of
from tests.faults.tools.process import FaultyServer
from tests.runner.long import all_but
from tests.servers.waiting import wait_until

MESSAGES = 12
QUEUES = ("one", "two", "three")
VICTIM = ("two", 5)
"""Message in or around whose record a bit is flipped."""
pytestmark = pytest.mark.timeout(600)


def _body(queue: str, number: int) -> str:
    return body_of(f"{queue}-{number}", 300)


@pytest.fixture(autouse=True)
def _found_by_their_bodies(server: FaultyServer) -> None:
    """Store bodies unencrypted, because positions in the files are found by them."""
    server.settings["HOLDFAST_ENCRYPTION"] = "off"


async def _fill(server: FaultyServer) -> None:
    """Send messages to each queue, one after the other."""
    client = Client(server)
    for queue in QUEUES:
        await client.call("CreateQueue", QueueName=queue)
    for number in range(MESSAGES):
        for queue in QUEUES:
            await client.call("SendMessage", QueueUrl=url_of(queue), MessageBody=_body(queue, number))
    await client.close()


async def _served(server: FaultyServer) -> dict[str, list[int] | str]:
    """Return the numbers of the messages that each queue serves, or the code of its error."""
    client = Client(server)
    found: dict[str, list[int] | str] = {}
    for queue in QUEUES:
        try:
            served = await client.receive_all(url_of(queue), empty_answers=3, VisibilityTimeout=600)
            assert all(key.startswith(f"{queue}-") for key, _ in served)
            found[queue] = sorted(int(key.rpartition("-")[2]) for key, _ in served)
        except CallRefused as refused:
            found[queue] = refused.code
    await client.close()
    return found


ALL: list[int] = list(range(MESSAGES))
ALL_BUT_ONE = [number for number in ALL if number != VICTIM[1]]
STOPPED = "InternalFailure"


@pytest.mark.long
async def test_bits_flipped_around_the_records(server: FaultyServer) -> None:
    """Each is reported, and no message is lost."""
    await server.start_with()
    await _fill(server)
    server.kill()
    folder = places.logs(server.data)[-1]
    rotten = []
    for number, kind in enumerate(("segment header", "row header", "start of the row", "directory", "tail")):
        around = await asyncio.to_thread(places.places, folder, _body("two", 2 * number))
        rotten.append((kind, around[kind], around["start of the row"].offset, around["end of the row"].offset))
    for _, place, _, _ in rotten:
        place.flip()
    await server.start_with()
    log = server.log_text()
    for kind, place, start, end in rotten:
        offsets = (0,) if kind == "segment header" else range(start, end)
        assert any(f"{place.file}:{offset} " in log for offset in offsets), kind
    assert await _served(server) == dict.fromkeys(QUEUES, ALL)


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        ("body", ALL_BUT_ONE),
        pytest.param("head", STOPPED, marks=pytest.mark.long),
        pytest.param("record header", STOPPED, marks=pytest.mark.long),
    ],
)
async def test_a_bit_flipped_in_a_record(server: FaultyServer, kind: str, left: list[int] | str) -> None:
    """The message is lost, or its queue stops."""
    await server.start_with()
    await _fill(server)
    server.kill()
    around = await asyncio.to_thread(places.places, places.logs(server.data)[-1], _body(*VICTIM))
    around[kind].flip()
    await server.start_with()
    assert f"{around[kind].file}:{around['record'].offset}" in server.log_text()
    assert await _served(server) == {"one": ALL, "two": left, "three": ALL}
    assert ("stopped" in server.log_text()) == (left == STOPPED)


@pytest.mark.long
async def test_a_body_that_rots_while_it_waits(server: FaultyServer) -> None:
    """It is below the checkpoint, so it is read only at a receive."""
    await server.start_with()
    await _fill(server)
    folder = places.logs(server.data)[-1]
    assert await asyncio.to_thread(server.stop) == 0
    victim = (await asyncio.to_thread(places.places, folder, _body(*VICTIM)))["body"]
    await server.start_with()
    before = len(server.log_text())
    victim.flip()
    assert await _served(server) == {"one": ALL, "two": ALL_BUT_ONE, "three": ALL}
    log = server.log_text()[before:]
    assert "quarantined" in log
    assert f"{victim.file}:" in log
    client = Client(server)
    counters = await client.call("GetQueueAttributes", QueueUrl=url_of("two"), AttributeNames=["All"])
    await client.close()
    assert counters["Attributes"]["ApproximateNumberOfMessagesNotVisible"] == str(MESSAGES - 1)


@pytest.mark.long
async def test_each_file_of_checkpoint_pieces(server: FaultyServer) -> None:
    """A damaged checkpoint stops its queues; each queue serves everything or reports damage, and nothing wrong."""
    await server.start_with()
    await _fill(server)
    assert await asyncio.to_thread(server.stop) == 0
    files = places.pieces(server.data)
    assert files
    whole = {file: file.read_bytes() for file in files}
    stopped = 0
    for file in files:
        for offset in range(40, len(whole[file]), max(1, len(whole[file]) // 5)):
            places.FilePosition(file, offset).flip()
            before = len(server.log_text())
            await server.start_with()
            log = server.log_text()[before:]
            found = await _served(server)
            server.kill()
            for queue, served in found.items():
                assert served in (ALL, STOPPED), f"{queue} after a flip at {file}:{offset}"
            if STOPPED in found.values():
                stopped += 1
                assert str(file) in log
            file.write_bytes(whole[file])
            if stopped:
                return
    raise AssertionError("no flip has hit anything")


@pytest.mark.parametrize("how", all_but(["half"], ["truncated", "garbage", "half"]))
async def test_a_torn_tail(server: FaultyServer, how: str) -> None:
    """Nothing of the row being written at the end was ever acknowledged."""
    await server.start_with()
    await _fill(server)
    await _until_marked(server)
    server.kill()
    folder = places.logs(server.data)[-1]
    rows = await asyncio.to_thread(places.rows_of, folder)
    file = folder / segment_name(rows[-1].segment)
    end = rows[-1].offset + rows[-1].size_bytes
    with file.open("r+b") as opened:
        if how == "truncated":
            opened.truncate(end + 40)
        elif how == "garbage":
            opened.seek(end)
            opened.write(os.urandom(700))
        else:  # the first half of a row like the last one
            opened.seek(rows[-2].offset)
            start = opened.read(rows[-2].size_bytes // 2)
            opened.seek(end)
            opened.write(start)
    await server.start_with()
    if how != "truncated":
        assert f"torn: {file}:{end}" in server.log_text()
    assert await _served(server) == dict.fromkeys(QUEUES, ALL)


@pytest.mark.long
async def test_an_answered_row_that_is_cut_off_is_damage(server: FaultyServer) -> None:
    """The lost messages cannot be determined: the server does not start before an operator has decided."""
    await server.start_with()
    await _fill(server)
    await _until_marked(server)
    server.kill()
    folder = places.logs(server.data)[-1]
    row, _ = await asyncio.to_thread(places.row_of, folder, _body("three", MESSAGES - 1))
    file = folder / segment_name(row.segment)
    with file.open("r+b") as opened:
        opened.seek(row.offset)
        opened.write(bytes(row.size_bytes))
    with pytest.raises(RuntimeError, match="ended with 1"):
        await server.start_with()
    text = server.log_text()
    assert f"{file}:{row.offset}" in text
    assert "the journal is damaged" in text
    assert "Traceback" not in text


async def _until_marked(server: FaultyServer) -> None:
    """Wait until the idle server has marked its last row as answered."""
    folder = places.logs(server.data)[-1]

    def marked() -> bool:
        rows = places.rows_of(folder)
        return not rows[-1].records

    await asyncio.to_thread(wait_until, marked, "the last row is marked")
