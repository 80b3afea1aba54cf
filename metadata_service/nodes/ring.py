"""Consistent-hash ring that assigns keys to members.

Each member has points on a circle of hashes, in number proportional to its weight; a key belongs to the member
of the first point at or after the key's own hash.  Points depend only on the member's name, so

* all processes that know the same members agree, on each machine and with each Python (the hash is BLAKE2b);
* a member that joins only gains keys, and one that leaves moves only its own keys: on average its share.

The points are one sorted array of 64-bit numbers, each the hash in the upper 48 bits and the member's index in
the list of members in the lower 16: 8 bytes a point, 2 MB for 1,000 members of weight 1; a lookup is a
bisection.

A :class:`RingView` is what processes have to agree on: the members, and a version that every change increments.
Views are stored and sent; each user builds its own :class:`Ring` from one.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from hashlib import blake2b
from struct import Struct

import msgspec

POINTS = 256
"""Number of points of a member of weight 1.  A member's share then deviates by 1/sqrt(256) = 6 %."""
WEIGHT_MAX = 64
MEMBERS_MAX = 1 << 16

_MEMBER_BITS = 16
_MEMBER = (1 << _MEMBER_BITS) - 1
_CIRCLE = 1 << 64
_BLOCK = Struct(">8Q")
"""Layout of a BLAKE2b digest, which makes eight points."""


class ViewInvalid(ValueError):
    """These members cannot form a view: the text says which, and why."""


class RingMember(msgspec.Struct, frozen=True):
    """A node of the ring."""

    name: str
    address: str = ""
    """Address of the node."""
    zone: str = ""
    """Failure domain: rack, zone or data centre.  Empty: the member is a domain of its own."""
    weight: float = 1.0
    """Weight; the member's share is proportional to it."""


class RingView(msgspec.Struct, frozen=True):
    """The members at one time.  A change makes the next view; the one with the higher version wins."""

    version: int
    members: tuple[RingMember, ...]
    """Members, ordered by name."""

    @classmethod
    def of(cls, version: int, members: tuple[RingMember, ...]) -> RingView:
        """Build a view: validate the members and sort them.  Raises :class:`ViewInvalid`."""
        if len(members) > MEMBERS_MAX:
            raise ViewInvalid(f"a ring has at most {MEMBERS_MAX} members, not {len(members)}")
        names: set[str] = set()
        for member in members:
            if not member.name:
                raise ViewInvalid("a member of a ring needs a name")
            if member.name in names:
                raise ViewInvalid(f"the ring has two members named {member.name!r}")
            if not 0 < member.weight <= WEIGHT_MAX:
                raise ViewInvalid(
                    f"the weight of {member.name!r} has to be above 0 and at most {WEIGHT_MAX}, not {member.weight}"
                )
            names.add(member.name)
        return cls(version, tuple(sorted(members, key=lambda member: member.name)))

    @property
    def mark(self) -> str:
        """Identifier that distinguishes views, even two made with the same version."""
        return f"{self.version}-{blake2b(msgspec.json.encode(self), digest_size=8).hexdigest()}"

    def joined(self, member: RingMember) -> RingView:
        """The next view, with an additional member."""
        return RingView.of(self.version + 1, (*self.members, member))

    def left(self, name: str) -> RingView:
        """The next view, without the member ``name``.  Raises :class:`ViewInvalid` if there is none."""
        members = tuple(member for member in self.members if member.name != name)
        if len(members) == len(self.members):
            raise ViewInvalid(f"the ring has no member named {name!r}")
        return RingView(self.version + 1, members)


def parse_members(text: str) -> tuple[RingMember, ...]:
    """Parse members from a setting: ``m1=http://10.0.0.1:9401,m2=http://10.0.0.2:9401;zone=b;weight=2``.

    Raises :class:`ViewInvalid`.
    """
    members = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, *rest = part.split(";")
        name, _, address = first.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
            raise ViewInvalid(f"{part!r} has to begin with a name of letters, digits, dots and dashes, and an =")
        if not re.fullmatch(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}", address):
            raise ViewInvalid(f"the address of {name!r} has to be like http://10.0.0.1:9401, not {address!r}")
        zone, weight = "", 1.0
        for option in rest:
            key, _, value = option.partition("=")
            if key == "zone" and value:
                zone = value
            elif key == "weight" and re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", value):
                weight = float(value)
            else:
                raise ViewInvalid(f"{option!r} of {name!r} is neither a zone=NAME nor a weight=NUMBER")
        members.append(RingMember(name, address, zone, weight))
    return RingView.of(0, tuple(members)).members


def hash_of(key: str) -> int:
    """Position of a key on the circle: 64 bits."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")


def _points_of(member: RingMember) -> Iterator[int]:
    """Points of a member, more for a heavier one: a change of the weight only adds or removes some."""
    count = max(1, round(member.weight * POINTS))
    name = member.name.encode()
    for block in range(-(-count // 8)):
        digest = blake2b(name, digest_size=64, salt=block.to_bytes(8, "big"), person=b"holdfast ring").digest()
        yield from _BLOCK.unpack(digest)[: count - block * 8]


class Ring:
    """Lookup structure for a view.  Immutable."""

    __slots__ = ("_points", "_zones", "view")

    def __init__(self, view: RingView) -> None:
        self.view = view
        points = [
            point & ~_MEMBER | number for number, member in enumerate(view.members) for point in _points_of(member)
        ]
        points.sort()
        self._points = array("Q", points)
        self._zones = len({member.zone or member.name for member in view.members})

    def __len__(self) -> int:
        return len(self.view.members)

    @property
    def size_bytes(self) -> int:
        """Size of the points, which is nearly all memory of a ring."""
        return len(self._points) * self._points.itemsize

    def owner(self, key: str) -> RingMember:
        """Member that owns the key.  Raises ``LookupError`` if the ring has no members."""
        points = self._points
        if not points:
            raise LookupError("the ring has no members")
        at = bisect_left(points, hash_of(key) & ~_MEMBER)
        return self.view.members[points[at if at < len(points) else 0] & _MEMBER]

    def successors(self, key: str, count: int) -> list[RingMember]:
        """The owner and the members after it: ``count`` distinct members, or all if there are fewer.

        Members of other zones are first: two share a zone only when every zone has one.
        """
        at = hash_of(key)
        chosen: dict[str, RingMember] = {}
        zones: set[str] = set()
        for member in self._from(at):
            zone = member.zone or member.name
            if zone not in zones:
                zones.add(zone)
                chosen[member.name] = member
            if len(zones) == min(count, self._zones):
                break
        if len(chosen) < count:
            for member in self._from(at):
                chosen.setdefault(member.name, member)
                if len(chosen) == count:
                    break
        return list(chosen.values())[:count]

    def shares(self) -> dict[str, float]:
        """Part of the circle of each member, by name; the sum is 1."""
        parts = [0] * len(self.view.members)
        points = self._points
        before = points[-1] - _CIRCLE if points else 0
        for point in points:
            parts[point & _MEMBER] += (point & ~_MEMBER) - (before & ~_MEMBER)
            before = point
        return {member.name: part / _CIRCLE for member, part in zip(self.view.members, parts, strict=True)}

    def _from(self, at: int) -> Iterator[RingMember]:
        """All members, in the order of their first points from here on."""
        points, members = self._points, self.view.members
        first = bisect_left(points, at & ~_MEMBER)
        seen = bytearray(len(members))
        left = len(members)
        for index in range(first, first + len(points)):
            number = points[index % len(points)] & _MEMBER
            if not seen[number]:
                seen[number] = 1
                yield members[number]
                left -= 1
                if not left:
                    return


def movement(before: Ring, after: Ring) -> float:
    """Part of all keys whose owner changes."""
    moved = 0
    edges = sorted({point & ~_MEMBER for ring in (before, after) for point in ring._points})
    if not edges:
        return 0.0
    last = edges[-1] - _CIRCLE
    for edge in edges:
        if _name_at(before, edge) != _name_at(after, edge):
            moved += edge - last
        last = edge
    return moved / _CIRCLE


def _name_at(ring: Ring, at: int) -> str | None:
    points = ring._points
    if not points:
        return None
    index = bisect_left(points, at)
    return ring.view.members[points[index if index < len(points) else 0] & _MEMBER].name
