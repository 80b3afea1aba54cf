"""Requests and responses for streams and consumer groups, as described in the OpenAPI document.

Times are in seconds since the epoch.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, Field

from frontend.rest.models import Given
from metadata_service.streams import PARTITIONS_MAX

T = TypeVar("T")
FirstError = Annotated[T, Field(fail_fast=True)]
"""A list or map that is checked up to its first error: each error takes much more memory than its element."""
SettingGiven = str | int | float | bool
RECORDS_MAX = 1_000
"""Records of one request."""


# --- streams -------------------------------------------------------------------------------------------------


class StreamGiven(Given):
    """A stream to be created."""

    name: str = Field(description="1 to 249 letters, digits, periods, underscores and hyphens")
    partitions: int = Field(1, ge=1, le=PARTITIONS_MAX)
    settings: dict[str, SettingGiven] = Field({}, fail_fast=True, description="by Kafka's names, such as retention.ms")


class StreamChange(Given):
    """Changes of a stream: what is absent stays."""

    partitions: int | None = Field(None, ge=1, le=PARTITIONS_MAX, description="number in all; it can only grow")
    settings: dict[str, SettingGiven | None] = Field({}, fail_fast=True, description="null: the default")


class StreamPartitionShown(BaseModel):
    partition: int
    first_offset: int | None = Field(description="offset of the first record; null: it cannot be read now")
    end_offset: int | None = Field(description="offset that the next record gets")
    stored_bytes: int | None


class StreamLine(BaseModel):
    """A stream in a list."""

    name: str
    account: str
    partitions: int
    created: int


class StreamPage(BaseModel):
    streams: list[StreamLine]
    next: str | None = Field(None, description="value of `after` for the next page; null: this is the last one")


class StreamShown(BaseModel):
    """All properties of a stream."""

    name: str
    account: str
    arn: str
    topic_id: str = Field(description="id in Kafka's protocol, a UUID")
    created: int
    partitions: list[StreamPartitionShown]
    settings: dict[str, str] = Field(description="settings that differ from their defaults, by Kafka's names")


# --- records -------------------------------------------------------------------------------------------------


class RecordHeader(Given):
    name: str
    value: str | None = None
    value_base64: str | None = Field(None, description="in place of `value`, for any bytes")


class RecordGiven(Given):
    """A record to be stored."""

    value: str | None = Field(None, description="text; null: a record without a value (Kafka's tombstone)")
    value_base64: str | None = Field(None, description="in place of `value`, for any bytes")
    key: str | None = Field(None, description="records with the same key are in the same partition")
    key_base64: str | None = Field(None, description="in place of `key`, for any bytes")
    headers: FirstError[dict[str, str | None]] | FirstError[list[RecordHeader]] = Field(
        {}, description="names with texts, or a list"
    )
    partition: int | None = Field(None, ge=0, description="default: by the key, or in turn")
    timestamp: float | None = Field(None, ge=0, le=1e11, description="default: now")


class RecordsGiven(Given):
    """Records to be stored, in this order in each partition."""

    records: list[RecordGiven] = Field(min_length=1, max_length=RECORDS_MAX, fail_fast=True)


class RecordOutcome(BaseModel):
    """Place of a stored record, or the reason for which it was not stored."""

    partition: int
    offset: int | None = Field(None, description="null: see `detail`")
    code: str | None = None
    detail: str | None = None


class RecordsStored(BaseModel):
    records: list[RecordOutcome] = Field(description="one for each record of the request, in its order")


class HeaderShown(BaseModel):
    name: str
    value: str | None = None
    value_base64: str | None = Field(None, description="in place of `value`, if that is not UTF-8")


class RecordShown(BaseModel):
    partition: int
    offset: int
    timestamp: float | None = Field(description="null: the producer has set none")
    key: str | None = None
    key_base64: str | None = Field(None, description="in place of `key`, if that is not UTF-8")
    value: str | None = None
    value_base64: str | None = Field(None, description="in place of `value`, if that is not UTF-8")
    headers: list[HeaderShown]


class RecordPage(BaseModel):
    records: list[RecordShown] = Field(description="empty if the filter has skipped all of what was read")
    next: str = Field(description="value of `after` to go on from here, and of `position` of a commit")


# --- consumer groups -----------------------------------------------------------------------------------------


class GroupLine(BaseModel):
    """A consumer group in a list."""

    name: str
    state: str = Field(description="Empty, PreparingRebalance, CompletingRebalance, Stable or Dead, as in Kafka")


class GroupPage(BaseModel):
    groups: list[GroupLine]
    next: str | None = Field(None, description="value of `after` for the next page; null: this is the last one")


class MemberShown(BaseModel):
    """A consumer that is a member by Kafka's protocol."""

    id: str
    instance: str | None = Field(description="id of a static member")
    client: str
    host: str


class PositionShown(BaseModel):
    """Committed offset of a group in a partition."""

    stream: str
    partition: int
    offset: int = Field(description="offset of the next record to be consumed")
    end_offset: int | None = Field(description="end of the partition; null: it cannot be read now")
    lag: int | None = Field(description="records that are not consumed yet")
    committed: float
    metadata: str


class GroupShown(BaseModel):
    """All properties of a consumer group."""

    name: str
    account: str
    state: str
    assignor: str
    members: list[MemberShown]
    positions: list[PositionShown]


class OffsetGiven(Given):
    partition: int = Field(ge=0)
    offset: int = Field(ge=0, le=2**63 - 1, description="offset of the next record to be consumed")
    metadata: str = ""


class CommitGiven(Given):
    """Offsets to be committed: either `position` or `offsets`."""

    stream: str
    position: str | None = Field(None, description="`next` of the answer whose records were consumed")
    offsets: list[OffsetGiven] | None = Field(None, min_length=1, max_length=PARTITIONS_MAX)


class ResetGiven(Given):
    """A new position of a group in a stream: exactly one of `to`, `offset` and `timestamp`."""

    stream: str
    to: str | None = Field(None, description="earliest or latest", pattern="^(earliest|latest)$")
    offset: int | None = Field(None, ge=0, le=2**63 - 1, description="limited to the records that are there")
    timestamp: float | None = Field(None, ge=0, le=1e11, description="the first record of this time or later")
    partitions: list[int] | None = Field(None, min_length=1, max_length=PARTITIONS_MAX, description="default: all")


class PartitionOffset(BaseModel):
    partition: int
    offset: int


class OffsetsReset(BaseModel):
    stream: str
    offsets: list[PartitionOffset]
