"""``python -m tests.backend.out_of_files FOLDER``: receives on a node whose process may open no more files.

Prints the number of receives refused meanwhile, and of messages received, deleted and quarantined afterwards.
"""

import asyncio
import json
import resource
import sys
from pathlib import Path

from backend.api import Unavailable
from tests.backend.nodes import RestartableNode

MESSAGES = 200


async def main(folder: Path) -> dict[str, int]:
    cluster = RestartableNode(folder)
    await cluster.start()
    queue = await cluster.queue(1)
    for start in range(0, MESSAGES, 10):
        await cluster.send(queue, *(f"{number} ".ljust(1000, "x") for number in range(start, start + 10)))
    await cluster.restart()  # messages are only in files now, which are not open yet
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    refused = 0
    for _ in range(5):
        try:
            await cluster.receive(queue)
        except Unavailable as error:
            refused += "Too many open files" in str(error)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    received = 0
    while messages := await cluster.receive(queue):
        assert all(message.receives == 1 for message in messages), "what nobody got counts as not received"
        await cluster.delete(queue, *messages)
        received += len(messages)
    quarantined = cluster.incarnation.partitions[1].fold.quarantined
    await cluster.stop()
    return {"refused": refused, "received": received, "quarantined": quarantined}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
