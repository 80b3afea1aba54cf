"""Settings of a stream: the topic configuration of Kafka 3.9, by its names.  Pure.

The store holds the canonical texts of the entries that were set; an entry that was not set has its default here.
:func:`validated` and :func:`changed` make them from what clients send, :func:`described` lists all entries for
clients, and :func:`options` has the values as plain fields.

Tools set entries that mean nothing here, for example the size of Kafka's segments.  Such an entry is checked, stored
and reported as in Kafka, and has no effect; its documentation says so.  An entry whose other values would promise what
does not exist has one allowed value, and is read-only.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from metadata_service.queue_settings import ACK_LEVEL

MESSAGE_BYTES_MAX: Final = 4 << 20
"""Upper limit of ``max.message.bytes``.  A batch is one record of the journal, which has to fit into a row and a
segment."""
DAY_MS: Final = 86_400_000
_INT_MAX: Final = (1 << 31) - 1
_LONG_MAX: Final = (1 << 63) - 1
_SHOWN_CHARS: Final = 100
"""Number of characters of a refused value that an error repeats."""
_NO_EFFECT: Final = " Accepted and reported, without effect."

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}\Z", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?\Z", re.ASCII)


class ConfigType(enum.IntEnum):
    """Type of an entry, with the numbers of Kafka's DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigOperation(enum.IntEnum):
    """Change of an entry, with the numbers of Kafka's IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """A change of one entry."""

    name: str
    operation: ConfigOperation
    value: str | None
    """Value; None or anything for DELETE."""


class ConfigEntry(NamedTuple):
    """One entry as clients see it."""

    name: str
    value: str
    is_default: bool
    """True if the entry was not set."""
    read_only: bool
    """True if no other value is accepted."""
    type: ConfigType
    documentation: str


class InvalidSetting(ValueError):
    """An entry cannot be set like this; the text names entry, value and what is allowed."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class StreamOptions(msgspec.Struct, frozen=True):
    """All settings of a stream that have an effect.  The names are those of
    :class:`backend.stream_api.StreamSettings`, where it has them."""

    retention_ms: int
    """Time for which batches are kept; -1: for ever."""
    retention_bytes: int
    """Bytes of one partition above which its oldest batches are removed; -1: no limit."""
    has_retention: bool
    """False if the cleanup policy is compaction alone."""
    is_compacted: bool
    """True if the cleanup policy contains compaction, which does not exist yet."""
    batch_bytes_max: int
    """Bytes of a batch as the client sends it."""
    append_time: bool
    """The timestamp of batches is the time of the append, not the producer's."""
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    """Time by which a producer's timestamp may be behind or ahead of the time of the append; larger: refused."""
    ack_level: str
    """Level of an append with acks=all: ``quorum`` or ``all``."""
    min_insync_replicas: int
    """Reported only."""


def validated(given: Mapping[str, str | None]) -> dict[str, str]:
    """Canonical values of the entries of a new stream.  Raises :class:`InvalidSetting`."""
    return {name: _checked(name, value) for name, value in given.items()}


def changed(stored: Mapping[str, str], changes: Iterable[ConfigChange]) -> dict[str, str]:
    """Entries after these changes, in their order.  Raises :class:`InvalidSetting`."""
    result = dict(stored)
    for name, operation, value in changes:
        setting = _setting(name)
        if operation is ConfigOperation.DELETE:
            result.pop(name, None)
        elif operation is ConfigOperation.SET:
            result[name] = _checked(name, value)
        elif setting.type is not ConfigType.LIST:
            raise InvalidSetting(
                name, f"{name} cannot be appended to or subtracted from: it is not a list, but one value"
            )
        else:
            items, given = _items(result.get(name, setting.default)), _items(value or "")
            if operation is ConfigOperation.APPEND:
                items += [item for item in given if item not in items]
            else:
                items = [item for item in items if item not in given]
            result[name] = _checked(name, ",".join(items))
    return result


def known(name: str) -> bool:
    """Tell whether there is a setting of this name."""
    return name in _SETTINGS


def described(stored: Mapping[str, str], names: Collection[str] | None = None) -> list[ConfigEntry]:
    """All entries, or those with these names, ordered by name; unknown names are left out."""
    return [
        ConfigEntry(
            name,
            stored.get(name, setting.default),
            name not in stored,
            setting.allowed is not None,
            setting.type,
            setting.documentation,
        )
        for name, setting in _SETTINGS.items()
        if names is None or name in names
    ]


def options(stored: Mapping[str, str]) -> StreamOptions:
    """Values of all settings that have an effect."""

    def value(name: str) -> str:
        return stored.get(name, _SETTINGS[name].default)

    policies = _items(value("cleanup.policy"))
    difference = value("message.timestamp.difference.max.ms")  # deprecated by Kafka, and the default of the other two
    return StreamOptions(
        retention_ms=int(value("retention.ms")),
        retention_bytes=int(value("retention.bytes")),
        has_retention="delete" in policies,
        is_compacted="compact" in policies,
        batch_bytes_max=int(value("max.message.bytes")),
        append_time=value("message.timestamp.type") == "LogAppendTime",
        timestamp_before_max_ms=int(stored.get("message.timestamp.before.max.ms", difference)),
        timestamp_after_max_ms=int(stored.get("message.timestamp.after.max.ms", difference)),
        ack_level=value(ACK_LEVEL),
        min_insync_replicas=int(value("min.insync.replicas")),
    )


# --- checks -----------------------------------------------------------------------------------------------


class _Setting(NamedTuple):
    type: ConfigType
    default: str
    documentation: str
    canonical: Callable[[str], str | None]
    """Function that returns the canonical text of a value, None if it is not allowed."""
    expected: str
    """Description of allowed values, for errors."""
    allowed: str | None = None
    """The only allowed value; None: there are several."""


def _setting(name: str) -> _Setting:
    setting = _SETTINGS.get(name)
    if setting is None:
        raise InvalidSetting(
            name, f"{name[:_SHOWN_CHARS]!r} is no entry of a topic's configuration; there are {', '.join(_SETTINGS)}"
        )
    return setting


def _checked(name: str, value: str | None) -> str:
    """Return the canonical text of a value.  Raises :class:`InvalidSetting`."""
    setting = _setting(name)
    canonical = None if value is None else setting.canonical(value.strip())
    if canonical is None:
        shown = "null" if value is None else repr(value[:_SHOWN_CHARS])
        raise InvalidSetting(name, f"{name} cannot be {shown}: it has to be {setting.expected}")
    return canonical


def _items(text: str) -> list[str]:
    """Items of a list, each once, in order."""
    return list(dict.fromkeys(item for item in map(str.strip, text.split(",")) if item))


def _number(
    type_: ConfigType, default: int, documentation: str, least: int, most: int | None = None, also: int | None = None
) -> _Setting:
    """A whole number from ``least`` to ``most``, or ``also``."""
    most = (_INT_MAX if type_ is ConfigType.INT else _LONG_MAX) if most is None else most

    def canonical(text: str) -> str | None:
        if not _WHOLE.match(text):
            return None
        number = int(text)
        return str(number) if least <= number <= most or number == also else None

    expected = f"a whole number from {least} to {most}" + ("" if also is None else f", or {also}")
    return _Setting(type_, str(default), documentation, canonical, expected)


def _int(default: int, documentation: str, least: int, most: int | None = None, also: int | None = None) -> _Setting:
    return _number(ConfigType.INT, default, documentation, least, most, also)


def _long(default: int, documentation: str, least: int) -> _Setting:
    return _number(ConfigType.LONG, default, documentation, least)


def _boolean(default: str, documentation: str) -> _Setting:
    def canonical(text: str) -> str | None:
        return text.lower() if text.lower() in ("true", "false") else None

    return _Setting(ConfigType.BOOLEAN, default, documentation, canonical, "true or false")


def _ratio(default: str, documentation: str) -> _Setting:
    def canonical(text: str) -> str | None:
        return str(float(text)) if _DECIMAL.match(text) and float(text) <= 1 else None

    return _Setting(ConfigType.DOUBLE, default, documentation, canonical, "a number from 0 to 1")


def _choice(documentation: str, default: str, *others: str) -> _Setting:
    values = (default, *others)
    return _Setting(
        ConfigType.STRING, default, documentation, lambda text: text if text in values else None, " or ".join(values)
    )


def _fixed(type_: ConfigType, only: str, documentation: str) -> _Setting:
    return _Setting(
        type_, only, documentation, lambda text: only if text.lower() == only else None, only or "empty", allowed=only
    )


def _policies(text: str) -> str | None:
    items = _items(text)
    return ",".join(items) if items and set(items) <= {"delete", "compact"} else None


def _version(text: str) -> str | None:
    return text if re.match(r"[0-9]{1,2}(\.[0-9]{1,2}){0,3}(-IV[0-9]{1,2})?\Z", text, re.ASCII) else None


# --- entries ----------------------------------------------------------------------------------------------


_SETTINGS: Final[dict[str, _Setting]] = dict(
    sorted(
        {
            ACK_LEVEL: _choice(
                "Durability that appends with acks=all wait for: a quorum of the replicas, or all of them.",
                "quorum",
                "all",
            ),
            "cleanup.policy": _Setting(
                ConfigType.LIST,
                "delete",
                "Removal of old records: delete, by age and size; compact, by key. Compaction is accepted and deletes "
                "nothing yet, so a topic with compact alone keeps everything.",
                _policies,
                "delete, compact, or both separated by a comma",
            ),
            "compression.gzip.level": _int(-1, "Level of gzip." + _NO_EFFECT, 1, 9, also=-1),
            "compression.lz4.level": _int(9, "Level of lz4." + _NO_EFFECT, 1, 17),
            "compression.type": _fixed(
                ConfigType.STRING,
                "producer",
                "Codec of stored batches. They are stored as the producer has compressed them, and never compressed "
                "anew.",
            ),
            "compression.zstd.level": _int(3, "Level of zstd." + _NO_EFFECT, -131_072, 22),
            "delete.retention.ms": _long(DAY_MS, "Time for which compaction keeps tombstones." + _NO_EFFECT, 0),
            "file.delete.delay.ms": _long(60_000, "Delay of the deletion of files." + _NO_EFFECT, 0),
            "flush.messages": _long(
                _LONG_MAX, "Records after which a file is synced. Every append is durable here." + _NO_EFFECT, 1
            ),
            "flush.ms": _long(
                _LONG_MAX, "Time after which a file is synced. Every append is durable here." + _NO_EFFECT, 0
            ),
            "follower.replication.throttled.replicas": _fixed(
                ConfigType.LIST, "", "Throttled followers. There are no followers here."
            ),
            "index.interval.bytes": _int(4096, "Distance of entries in Kafka's index." + _NO_EFFECT, 0),
            "leader.replication.throttled.replicas": _fixed(
                ConfigType.LIST, "", "Throttled leaders. There are no followers here."
            ),
            "local.retention.bytes": _long(-2, "Bytes kept locally with tiered storage." + _NO_EFFECT, -2),
            "local.retention.ms": _long(-2, "Time kept locally with tiered storage." + _NO_EFFECT, -2),
            "max.compaction.lag.ms": _long(_LONG_MAX, "Time after which a record is compacted." + _NO_EFFECT, 1),
            "max.message.bytes": _int(
                1_048_588, "Maximum size of a batch, as sent by the producer.", 0, MESSAGE_BYTES_MAX
            ),
            "message.downconversion.enable": _boolean(
                "true", "Conversion to the formats before version 2, which are not served." + _NO_EFFECT
            ),
            "message.format.version": _Setting(
                ConfigType.STRING,
                "3.0-IV1",
                "Deprecated by Kafka. The format is version 2." + _NO_EFFECT,
                _version,
                "a version of Kafka, such as 3.0-IV1",
            ),
            "message.timestamp.after.max.ms": _long(
                _LONG_MAX, "Time by which a producer's timestamp may be ahead of the append.", 0
            ),
            "message.timestamp.before.max.ms": _long(
                _LONG_MAX, "Time by which a producer's timestamp may be behind the append.", 0
            ),
            "message.timestamp.difference.max.ms": _long(
                _LONG_MAX,
                "Deprecated by Kafka: default of message.timestamp.before.max.ms and message.timestamp.after.max.ms.",
                0,
            ),
            "message.timestamp.type": _choice(
                "Timestamp of records: the producer's, or the time of the append.", "CreateTime", "LogAppendTime"
            ),
            "min.cleanable.dirty.ratio": _ratio("0.5", "Part to be compacted that starts a compaction." + _NO_EFFECT),
            "min.compaction.lag.ms": _long(0, "Time for which a record is not compacted." + _NO_EFFECT, 0),
            "min.insync.replicas": _int(
                1,
                "Replicas that acks=all needs. Here acks=all waits for a quorum, or for all replicas with "
                "HoldfastAckLevel all." + _NO_EFFECT,
                1,
            ),
            "preallocate": _boolean("false", "Preallocation of segments." + _NO_EFFECT),
            "remote.log.copy.disable": _boolean("false", "End of copies with tiered storage." + _NO_EFFECT),
            "remote.log.delete.on.disable": _boolean("false", "Deletion with tiered storage." + _NO_EFFECT),
            "remote.storage.enable": _fixed(ConfigType.BOOLEAN, "false", "Tiered storage, which does not exist here."),
            "retention.bytes": _long(
                -1, "Bytes of a partition above which its oldest records are removed; -1: no limit.", -1
            ),
            "retention.ms": _long(7 * DAY_MS, "Time for which records are kept; -1: for ever.", -1),
            "segment.bytes": _int(1 << 30, "Size of Kafka's segments." + _NO_EFFECT, 14),
            "segment.index.bytes": _int(10 << 20, "Size of the indexes of Kafka's segments." + _NO_EFFECT, 4),
            "segment.jitter.ms": _long(0, "Random part of segment.ms." + _NO_EFFECT, 0),
            "segment.ms": _long(7 * DAY_MS, "Time after which Kafka begins another segment." + _NO_EFFECT, 1),
            "unclean.leader.election.enable": _fixed(
                ConfigType.BOOLEAN, "false", "Owners that lack acknowledged records. There are none here."
            ),
        }.items()
    )
)
