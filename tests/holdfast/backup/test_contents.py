"""Checks of a backup's metadata before they are restored."""

from holdfast.backup.contents import outside
from metadata_service.cassandra.copy import MetadataCopy
from metadata_service.cassandra.credentials import text
from metadata_service.models import NewQueue, partition_id
from metadata_service.streams import NewStream

ACCOUNT = "000000000001"


def test_queues_and_topics_without_their_cluster_are_found() -> None:
    queues = [
        NewQueue(ACCOUNT, f"queue-{cluster}", {}, {}, 0, 0).made(cluster + 1, [partition_id(cluster, 1)])
        for cluster in range(3)
    ]
    streams = [
        NewStream(ACCOUNT, f"topic-{cluster}", {}, {}, 0).made(cluster + 9, [2, partition_id(cluster, 3)])
        for cluster in range(3)
    ]
    copy = MetadataCopy(
        {
            f"queues/{ACCOUNT}": {f"queue/{queue.name}": text(queue) for queue in queues},
            f"streams/{ACCOUNT}": {f"stream/{stream.name}": text(stream) for stream in streams},
        },
        {},
    )
    assert outside(copy, {0, 1, 2}) == []
    assert outside(copy, {0, 2}) == [f"{ACCOUNT}/queue-1", f"{ACCOUNT}/topic-1"]
