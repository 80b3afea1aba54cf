"""The rules that keep an acknowledged write, and what shows that each is needed.

A rule that can be taken out of the code has mutations: of a cluster (:mod:`tests.simulator.mutations.cluster`), or of
one node with a disk that loses power and rots (:mod:`tests.simulator.mutations.one_node`).  Of the others is said why
not.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    name: str
    says: str
    node: tuple[str, ...] = ()
    """Mutations of one node.  Those of clusters name the rule themselves."""
    why_not: str = ""
    """Part of it without a mutation here, and the reason."""


RULES = (
    Rule(
        "Writing 1",
        "An answer waits for its row and for every row before it.",
        ("answer_before_the_sync",),
    ),
    Rule("Writing 2", "It waits for a read of the log's entry, sent after that, at the level of the rows."),
    Rule("Writing 3", "Answers that wrote nothing wait for what they were computed from.", ("twin_answered_early",)),
    Rule("Writing 4", "So does everything else that leaves the process.", ("checkpoint_not_durable",)),
    Rule("Writing 5", "A row is sent again as it was until it is written; a window bounds what is under way."),
    Rule("Writing 6", "Who is fenced throws its memory away.", ("failed_sync_taken_for_a_success",)),
    Rule(
        "Writing 7",
        "What cannot be written is refused before it is applied.",
        ("length_not_checked",),
        "A log without a quorum that takes on only makes callers wait, and they give up first: "
        "`tests/backend/journal/cassandra/test_log.py` holds that it refuses.",
    ),
    Rule("Writing 8", "Ids and handles carry the epoch."),
    Rule(
        "Receipt handles",
        "In a FIFO queue only the handle of the receive counts that holds the message.",
        why_not="In runs that nothing was chosen for (`ordinary.py`).",
    ),
    Rule("Recovery 1", "A log is said to be recovered before it is read."),
    Rule("Recovery 2", "It ends at the first gap; a gap below what was answered is damage.", ("skipped_checksum",)),
    Rule("Recovery 3", "What was read past the answered mark is written again.", ("tail_not_rewritten",)),
    Rule("Recovery 4", "The end is set once; rows behind it never existed."),
    Rule(
        "Recovery 5",
        "A shard is taken by a conditional change of its entry, with the next epoch; other epochs are skipped.",
        ("replayed_below_the_checkpoint", "logs_replayed_in_reverse"),
    ),
    Rule("Recovery, the manager finishes what others began", "A recovery outlives its recoverer."),
    Rule(
        "Recovery, hand-over", "Close, durable, checkpoint, entry: in this order; the successor reads before it serves."
    ),
    Rule("Recovery, unknown transactions", "Only a further change settles one whose end is not known."),
    Rule("Recovery, the watcher", "Time in which the watcher saw nothing does not count."),
    Rule(
        "Recovery, damage is kept small",
        "A rotten body costs its message, a rotten record its queue.",
        ("rotten_body_delivered",),
    ),
    Rule(
        "Segments 1",
        "A segment goes when it is below the floor and nobody needs it, by entries that were read afterwards.",
        ("floor_moved_too_early", "live_segment_dropped"),
    ),
    Rule("Segments 2", "Live lists and checkpoints change together, on the condition of the version."),
    Rule(
        "Segments 3",
        "The cleaner waits for its copies before the old segment may go.",
        why_not="What it would have to wait for, the checkpoint after it waits for, too: without its own waiting "
        "nothing is lost, and `live_segment_dropped` is the rest of the rule.",
    ),
    Rule(
        "Segments 4", "Pieces go when no entry can come to name them; of a log that owns a shard only its node drops."
    ),
    Rule(
        "Segments 5",
        "No time to live; fixed timestamps for rows, counters for heartbeats.",
        why_not="Timestamps of rows are fixed in the statements of `cassandra_tables.py`; a clock in them would spare "
        "rows from their delete, which costs room and breaks no promise: "
        "`tests/metadata_service/cassandra/test_store.py` holds them on the real server.",
    ),
    Rule("Segments 6", "What transactions touch, only they write, and who decides reads at SERIAL."),
    Rule(
        "Time",
        "Shard time is steady: not early over a restart, not stepped by a wall clock, and the cluster's.",
        ("claim_ends_early", "delay_forgotten_at_restart"),
    ),
    Rule(
        "Moves",
        "Out, In, Done, in this order; what was taken is known by number; never is journaled.",
        ("transfer_forgotten", "transfer_done_too_early", "transfer_taken_twice"),
    ),
    Rule("Partitions 1", "A token goes to the partition that it hashes to; ids are never used again."),
    Rule(
        "Partitions 2",
        "A new map cuts off callers with older ones, tokens are handed over first, and what drains retires when empty.",
        why_not="That a partition which drains takes no sends is kept twice: callers know it by the map, and those "
        "with an older map are refused. So it has no mutation of its own.",
    ),
    Rule("Partitions 3", "Groups of a FIFO queue stay in their partitions, and are delivered one after the other."),
    Rule(
        "Partitions 4",
        "A receive claims from one partition at a time, and claims whose client has left are released.",
        why_not="It keeps messages from being hidden for a while, which no client can tell from an answer that was "
        "lost: `tests/frontend/queues/test_partitioned.py`.",
    ),
    Rule(
        "Partitions 5",
        "Purges and deletions are durable before they are answered; calls carry the queue's incarnation.",
        ("purge_forgotten_at_recovery",),
        "That a call names its queue's incarnation is kept twice: no partition's id is ever used again.",
    ),
    Rule("Ack levels", "A level changes only when a send is answered."),
    Rule(
        "Backups",
        "The moment of a backup is what a kill would have left, and what it names stays until it is copied.",
    ),
    Rule(
        "Local files",
        "Lock, chained rows, a new log for each start, a failed sync that is never repeated.",
    ),
)
