"""The ring: ownership of keys, and minimal movement."""

import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata_service.nodes.ring import POINTS, Ring, RingMember, RingView, ViewInvalid, hash_of, movement

KEYS = [f"000000000000/queue-{number}" for number in range(4000)]


def ring(*names: str, **weights: float) -> Ring:
    members = [RingMember(name) for name in names] + [
        RingMember(name, weight=weight) for name, weight in weights.items()
    ]
    return Ring(RingView.of(1, tuple(members)))


names = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), min_size=1, max_size=8, unique=True)


def test_all_processes_find_the_same_owner() -> None:
    """Fixed for ever: a process of another version, machine or Python must agree."""
    three = ring("a", "b", "c")
    assert hash_of("000000000000/orders") == 0xD30B3F9042A9E5F8
    assert "".join(three.owner(key).name for key in KEYS[:24]) == "ccbcbabacacbbcbcbcacaaca"


def test_the_order_of_the_members_and_the_seed_of_hashes_do_not_matter() -> None:
    program = (
        "from metadata_service.nodes.ring import *;"
        "r = Ring(RingView.of(1, (RingMember('c'), RingMember('a'), RingMember('b'))));"
        "print(''.join(r.owner(f'000000000000/queue-{n}').name for n in range(200)))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert printed.stdout.strip() == "".join(ring("a", "b", "c").owner(key).name for key in KEYS[:200])


@given(names, st.text(st.characters(codec="utf-8"), max_size=20))
def test_the_owner_is_the_first_successor_and_all_successors_differ(members: list[str], key: str) -> None:
    some = ring(*members)
    order = some.successors(key, len(members) + 3)
    assert sorted(member.name for member in order) == sorted(members)
    assert some.owner(key) == order[0]
    for count in range(len(members) + 1):
        assert some.successors(key, count) == order[:count]


@given(names, st.text(min_size=9, max_size=9))
def test_a_joining_node_takes_keys_only_to_itself(members: list[str], newcomer: str) -> None:
    before = ring(*members)
    after = Ring(before.view.joined(RingMember(newcomer)))
    for key in KEYS[:300]:
        owner = after.owner(key)
        assert owner.name == newcomer or owner == before.owner(key)
    share = after.shares()[newcomer]
    assert movement(before, after) == pytest.approx(share, abs=1e-9)
    assert movement(after, before) == pytest.approx(share, abs=1e-9)
    again = Ring(after.view.left(newcomer))
    assert movement(before, again) == 0
    assert again.view.version == 3


def test_shares_are_what_keys_meet() -> None:
    some = ring("a", "b", c=2.0, d=0.5)
    shares = some.shares()
    assert sum(shares.values()) == pytest.approx(1, abs=1e-12)
    for name, share in shares.items():
        met = sum(some.owner(key).name == name for key in KEYS) / len(KEYS)
        assert met == pytest.approx(share, abs=4 * (share / len(KEYS)) ** 0.5)
        weight = next(member.weight for member in some.view.members if member.name == name)
        assert share == pytest.approx(weight / 4.5, rel=0.35)


def test_a_heavier_member_keeps_what_it_had() -> None:
    light, heavy = ring("a", "b", c=1.0), ring("a", "b", c=2.0)
    assert heavy.shares()["c"] > light.shares()["c"]
    for key in KEYS:
        if light.owner(key).name == "c":
            assert heavy.owner(key).name == "c"


def test_successors_are_of_different_zones_as_long_as_there_are() -> None:
    members = [RingMember(f"n{number}", zone=f"z{number % 3}") for number in range(12)]
    zoned = Ring(RingView.of(1, tuple(members)))
    for key in KEYS[:200]:
        chosen = zoned.successors(key, 5)
        assert chosen[0] == zoned.owner(key)
        assert {member.zone for member in chosen[:3]} == {"z0", "z1", "z2"}
        assert len({member.name for member in chosen}) == 5
        assert zoned.successors(key, 2) == chosen[:2]
        plain = Ring(RingView.of(1, tuple(msgspec.structs.replace(member, zone="") for member in members)))
        by_place = [member.name for member in plain.successors(key, 12)]
        assert [by_place.index(member.name) for member in chosen[3:]] == sorted(
            by_place.index(member.name) for member in chosen[3:]
        )


def test_a_ring_without_members_owns_nothing() -> None:
    empty = Ring(RingView.of(0, ()))
    with pytest.raises(LookupError, match="no members"):
        empty.owner("x")
    assert empty.successors("x", 3) == []
    assert empty.shares() == {}
    assert movement(empty, empty) == 0
    assert movement(empty, ring("a")) == 1


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ((RingMember("a"), RingMember("a")), "two members named 'a'"),
        ((RingMember(""),), "needs a name"),
        ((RingMember("a", weight=0),), "weight of 'a'"),
        ((RingMember("a", weight=65),), "weight of 'a'"),
        ((RingMember("a", weight=float("nan")),), "weight of 'a'"),
    ],
)
def test_invalid_views(members: tuple[RingMember, ...], message: str) -> None:
    with pytest.raises(ViewInvalid, match=message):
        RingView.of(1, members)


def test_only_members_can_leave() -> None:
    with pytest.raises(ViewInvalid, match="no member named 'x'"):
        ring("a").view.left("x")


def test_a_view_survives_being_sent() -> None:
    view = RingView.of(7, (RingMember("b", "http://b:1", "r1", 2.5), RingMember("a")))
    sent = msgspec.json.decode(msgspec.json.encode(view), type=RingView)
    assert sent == view
    assert [member.name for member in sent.members] == ["a", "b"]
    assert [Ring(sent).owner(key) for key in KEYS[:50]] == [Ring(view).owner(key) for key in KEYS[:50]]


def test_a_ring_is_compact() -> None:
    some = ring(*(f"n{number}" for number in range(20)))
    assert some.size_bytes == 20 * POINTS * 8
    assert len(some) == 20
