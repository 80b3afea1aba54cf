"""Topic configuration: names and defaults of Kafka 3.9, values, errors and changes."""

from functools import partial

import pytest

from metadata_service.stream_settings import (
    MESSAGE_BYTES_MAX,
    ConfigChange,
    ConfigOperation,
    ConfigType,
    InvalidSetting,
    StreamOptions,
    changed,
    described,
    options,
    validated,
)

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
LONG_MAX = (1 << 63) - 1


def test_defaults_are_those_of_kafka() -> None:
    assert options({}) == StreamOptions(
        retention_ms=604_800_000,
        retention_bytes=-1,
        has_retention=True,
        is_compacted=False,
        batch_bytes_max=1_048_588,
        append_time=False,
        timestamp_before_max_ms=LONG_MAX,
        timestamp_after_max_ms=LONG_MAX,
        ack_level="quorum",
        min_insync_replicas=1,
    )


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"retention.ms": " +0005 "}, "5"),
        ({"retention.ms": "-1"}, "-1"),
        ({"retention.bytes": str(LONG_MAX)}, str(LONG_MAX)),
        ({"max.message.bytes": "0"}, "0"),
        ({"max.message.bytes": str(MESSAGE_BYTES_MAX)}, str(MESSAGE_BYTES_MAX)),
        ({"message.timestamp.type": "LogAppendTime"}, "LogAppendTime"),
        ({"compression.type": "Producer"}, "producer"),
        ({"compression.gzip.level": "-1"}, "-1"),
        ({"cleanup.policy": "compact"}, "compact"),
        ({"cleanup.policy": "compact, delete,compact"}, "compact,delete"),
        ({"min.insync.replicas": "2"}, "2"),
        ({"min.cleanable.dirty.ratio": "0.10"}, "0.1"),
        ({"preallocate": "TRUE"}, "true"),
        ({"message.format.version": "2.8-IV1"}, "2.8-IV1"),
        ({"leader.replication.throttled.replicas": ""}, ""),
        ({"HoldfastAckLevel": "all"}, "all"),
    ],
)
def test_values_are_stored_in_one_form(given: dict[str, str | None], stored: str) -> None:
    (name,) = given
    made = validated(given)
    assert made == {name: stored}
    assert validated(dict(made)) == made
    (entry,) = described(made, [name])
    assert (entry.name, entry.value, entry.is_default) == (name, stored, False)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "retention.ms",
            "-2",
            "retention.ms cannot be '-2': it has to be a whole number from -1 to 922337203685477580",
        ),
        ("retention.ms", "1.5", "cannot be '1.5'"),
        ("retention.ms", "", "cannot be ''"),
        ("retention.ms", None, "cannot be null"),
        ("retention.ms", "9223372036854775808", "cannot be '9223372036854775808'"),
        ("retention.ms", "1" * 5000, "cannot be '1111"),
        ("retention.ms", "٣", "cannot be"),
        ("segment.bytes", "2147483648", "a whole number from 14 to 2147483647"),
        ("max.message.bytes", str(MESSAGE_BYTES_MAX + 1), "it has to be a whole number from 0 to 4194304"),
        ("compression.gzip.level", "0", "a whole number from 1 to 9, or -1"),
        ("compression.type", "zstd", "compression.type cannot be 'zstd': it has to be producer"),
        ("message.timestamp.type", "logappendtime", "it has to be CreateTime or LogAppendTime"),
        ("cleanup.policy", "", "delete, compact, or both separated by a comma"),
        ("cleanup.policy", "delete,purge", "delete, compact, or both"),
        ("min.cleanable.dirty.ratio", "1.1", "a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "a number from 0 to 1"),
        ("preallocate", "yes", "true or false"),
        ("remote.storage.enable", "true", "it has to be false"),
        ("unclean.leader.election.enable", "true", "it has to be false"),
        ("follower.replication.throttled.replicas", "*", "it has to be empty"),
        ("message.format.version", "new", "a version of Kafka, such as 3.0-IV1"),
        ("HoldfastAckLevel", "none", "HoldfastAckLevel cannot be 'none': it has to be quorum or all"),
        ("retention", "5", "'retention' is no entry of a topic's configuration; there are HoldfastAckLevel, cleanup"),
    ],
)
def test_errors_name_the_entry_its_value_and_what_is_allowed(name: str, value: str | None, text: str) -> None:
    for attempt in (
        partial(validated, {"segment.ms": "5", name: value}),
        partial(changed, {}, [ConfigChange(name, SET, value)]),
    ):
        with pytest.raises(InvalidSetting) as raised:
            attempt()
        assert text in str(raised.value)
        assert raised.value.name == name
        assert len(str(raised.value)) < 2000


def test_changes_are_made_in_order() -> None:
    stored = {"retention.ms": "5", "of.a.newer.release": "x"}
    assert changed(
        stored,
        [
            ConfigChange("retention.ms", DELETE, None),
            ConfigChange("segment.ms", SET, "7"),
            ConfigChange("cleanup.policy", APPEND, "compact"),
            ConfigChange("cleanup.policy", APPEND, "compact,delete"),
            ConfigChange("cleanup.policy", SUBTRACT, "delete"),
            ConfigChange("retention.bytes", DELETE, "ignored"),
        ],
    ) == {"of.a.newer.release": "x", "segment.ms": "7", "cleanup.policy": "compact"}
    assert stored == {"retention.ms": "5", "of.a.newer.release": "x"}
    with pytest.raises(InvalidSetting, match=r"cleanup\.policy cannot be ''"):
        changed({}, [ConfigChange("cleanup.policy", SUBTRACT, "delete")])
    with pytest.raises(InvalidSetting, match=r"retention\.ms cannot be appended to or subtracted from"):
        changed({}, [ConfigChange("retention.ms", APPEND, "5")])
    with pytest.raises(InvalidSetting, match="'none' is no entry"):
        changed({}, [ConfigChange("none", DELETE, None)])


def test_effects_are_computed_from_stored_steps() -> None:
    stored = {
        "retention.ms": "-1",
        "retention.bytes": "1000",
        "max.message.bytes": "2000",
        "cleanup.policy": "compact",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "60",
        "message.timestamp.difference.max.ms": "70",
        "min.insync.replicas": "2",
        "HoldfastAckLevel": "all",
        "of.a.newer.release": "x",
    }
    found = options(stored)
    assert (found.retention_ms, found.retention_bytes, found.batch_bytes_max) == (-1, 1000, 2000)
    assert (found.has_retention, found.is_compacted, found.append_time) == (False, True, True)
    assert (found.timestamp_before_max_ms, found.timestamp_after_max_ms) == (60, 70)
    assert (found.ack_level, found.min_insync_replicas) == ("all", 2)
    both = options({"cleanup.policy": "compact,delete"})
    assert (both.has_retention, both.is_compacted) == (True, True)


def test_all_entries_are_described() -> None:
    entries = described({"retention.ms": "5", "of.a.newer.release": "x"})
    names = [entry.name for entry in entries]
    assert names == sorted(names)
    assert len(names) == 37
    assert [entry.name for entry in entries if not entry.is_default] == ["retention.ms"]
    assert {entry.name for entry in entries if entry.read_only} == {
        "compression.type",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "remote.storage.enable",
        "unclean.leader.election.enable",
    }
    assert all(entry.documentation.endswith(".") for entry in entries)
    types = {entry.name: entry.type for entry in entries}
    assert types["retention.ms"] is ConfigType.LONG
    assert types["max.message.bytes"] is ConfigType.INT
    assert types["cleanup.policy"] is ConfigType.LIST
    assert validated({entry.name: entry.value for entry in described({})}) == {
        entry.name: entry.value for entry in described({})
    }, "every default may be set"
    assert [entry.name for entry in described({}, ["retention.ms", "none"])] == ["retention.ms"]
