"""Trace context in headers: ``traceparent`` and ``tracestate`` of W3C's Trace Context (level 1), and AWS
X-Ray's ``X-Amzn-Trace-Id``, which messages carry as ``AWSTraceHeader``.

Malformed values are ignored: no call is refused because of a trace.  Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
XRAY: Final = b"x-amzn-trace-id"

STATE_BYTES_MAX: Final = 512
"""Maximum length of a ``tracestate``; longer ones are dropped, which the standard allows from this length on."""
STATE_MEMBERS_MAX: Final = 32
XRAY_BYTES_MAX: Final = 512
PACKED_BYTES_MIN: Final = 25

_parent = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x00-\xff]*)?").fullmatch
_KEY = rb"[a-z0-9][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13}"
_member = re.compile(rb"(%b)=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]" % _KEY).fullmatch
_xray = re.compile(rb"[\x21-\x7e ]{1,%d}" % XRAY_BYTES_MAX).fullmatch
_root = re.compile(rb"1-([0-9a-fA-F]{8})-([0-9a-fA-F]{24})").fullmatch
_segment = re.compile(rb"[0-9a-fA-F]{16}").fullmatch


class RemoteSpan(NamedTuple):
    """A reference to a span of another process."""

    trace_id: int
    """Trace id of 128 bits, not 0."""
    span_id: int
    """Span id of 64 bits, not 0."""
    sampled: bool | None
    """Sampling decision; None: left open by the caller."""
    state: str = ""
    """Value of ``tracestate``."""

    def pack(self) -> bytes:
        """Encode for other processes, and for storage with a message."""
        return b"".join(
            (
                self.trace_id.to_bytes(16, "big"),
                self.span_id.to_bytes(8, "big"),
                b"\1" if self.sampled else b"\0",
                self.state.encode(),
            )
        )

    def to_xray(self) -> str:
        """Format as the value of ``AWSTraceHeader``."""
        trace = f"{self.trace_id:032x}"
        return f"Root=1-{trace[:8]}-{trace[8:]};Parent={self.span_id:016x};Sampled={1 if self.sampled else 0}"


def unpack(packed: bytes) -> RemoteSpan | None:
    """Decode the result of :meth:`RemoteSpan.pack`; None if malformed."""
    if len(packed) < PACKED_BYTES_MIN:
        return None
    trace_id, span_id = int.from_bytes(packed[:16], "big"), int.from_bytes(packed[16:24], "big")
    if not trace_id or not span_id:
        return None
    return RemoteSpan(trace_id, span_id, bool(packed[24] & 1), read_state(packed[25:]))


def read_parent(value: bytes) -> RemoteSpan | None:
    """Parse a ``traceparent``, without the state."""
    found = _parent(value.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == b"ff" or (version == b"00" and rest is not None):
        return None
    place = RemoteSpan(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1))
    return place if place.trace_id and place.span_id else None


def read_state(value: bytes) -> str:
    """Parse a ``tracestate``; empty if it is malformed."""
    if len(value) > STATE_BYTES_MAX:
        return ""
    members = [member for each in value.split(b",") if (member := each.strip(b" \t"))]
    found = [_member(member) for member in members]
    keys = {one[1] for one in found if one is not None}
    if len(members) > STATE_MEMBERS_MAX or len(keys) != len(members):
        return ""
    return b",".join(members).decode("ascii")


def read_xray(value: bytes) -> RemoteSpan | None:
    """Parse an ``X-Amzn-Trace-Id`` or ``AWSTraceHeader``; None unless it names a parent."""
    parts = _xray_parts(value)
    trace_id, parent = _trace_of_root(parts), parts.get(b"Parent", b"")
    if not trace_id or _segment(parent) is None:
        return None
    sampled = {b"1": True, b"0": False}.get(parts.get(b"Sampled", b""))
    place = RemoteSpan(trace_id, int(parent, 16), sampled)
    return place if place.span_id else None


def read_xray_trace(value: bytes) -> int | None:
    """Trace id of an ``X-Amzn-Trace-Id`` or ``AWSTraceHeader``, with or without a parent; None if it has none."""
    return _trace_of_root(_xray_parts(value)) or None


def _xray_parts(value: bytes) -> dict[bytes, bytes]:
    if _xray(value) is None:
        return {}
    return dict(part.strip().partition(b"=")[::2] for part in value.split(b";"))


def _trace_of_root(parts: Mapping[bytes, bytes]) -> int:
    """Trace id of the root; 0: there is none."""
    root = _root(parts.get(b"Root", b""))
    return 0 if root is None else int(root[1] + root[2], 16)


def read(headers: Mapping[bytes, bytes]) -> RemoteSpan | None:
    """Parent span of a call by its headers, W3C's first; None if there is none."""
    parent = headers.get(TRACEPARENT)
    if parent is not None:
        place = read_parent(parent)
        if place is not None:
            state = headers.get(TRACESTATE)
            return place if state is None else place._replace(state=read_state(state))
    given = headers.get(XRAY)
    return None if given is None else read_xray(given)


def for_messages(headers: Mapping[bytes, bytes], span: RemoteSpan | None) -> str | None:
    """``AWSTraceHeader`` for the messages of a sending call that set none; None: no header.

    As in SQS, the sender's ``X-Amzn-Trace-Id`` is passed on unchanged.  A ``traceparent`` is converted to
    X-Ray's format: the receiver's span follows the service's own ``span`` of the call if there is one, else the
    sender's.
    """
    given = headers.get(XRAY)
    if given is not None and _xray(given) is not None and any(map(_root, re.findall(rb"Root=([^; ]+)", given))):
        return given.decode("ascii")
    parent = headers.get(TRACEPARENT)
    place = None if parent is None else read_parent(parent)
    if place is None:
        return None
    return (span or place).to_xray()
