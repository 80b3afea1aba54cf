import pytest

from backend.journal.pins import Pins


def test_each_pin_holds_and_is_listed() -> None:
    pins = Pins()
    assert pins.why(1, 1) == ["the floor of log 1 is not known"]
    pins.set_floor(1, 5)
    assert pins.droppable([(1, n) for n in range(1, 8)]) == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert pins.why(1, 5) == ["log 1 is replayed from segment 5"]

    pins.set_live(7, [(1, 2), (3, 1)])
    assert pins.why(1, 2) == ["shard 7 has live messages in it"]
    pins.set_live(7, [(1, 3)])
    assert pins.droppable([(1, 2), (1, 3)]) == [(1, 2)]
    pins.set_live(7, [])

    pins.set_chain(8, [(1, 4)])
    assert pins.droppable([(1, 3), (1, 4)]) == [(1, 3)]
    assert pins.why(1, 4) == ["shard 8 has no checkpoint behind it yet"]
    pins.set_chain(8, [])
    assert pins.droppable([(1, n) for n in range(1, 8)]) == [(1, 1), (1, 2), (1, 3), (1, 4)]


def test_rows_that_a_backup_copies_stay() -> None:
    pins = Pins()
    pins.set_floor(1, 9)
    pins.set_floor(2, 9)
    pins.set_backup("nightly", {1: 3})
    assert pins.why(1, 3) == ["the backup nightly copies it"]
    assert pins.droppable([(1, n) for n in range(1, 6)]) == [(1, 4), (1, 5)]
    assert pins.droppable([(2, 1)]) == [(2, 1)]


def test_several_pins_are_all_named() -> None:
    pins = Pins()
    pins.set_floor(2, 3)
    pins.set_live(1, [(2, 3)])
    pins.set_live(4, [(2, 3)])
    pins.set_chain(4, [(2, 1)])
    assert len(pins.why(2, 3)) == 4


def test_a_floor_never_falls() -> None:
    pins = Pins()
    pins.set_floor(1, 5)
    with pytest.raises(AssertionError):
        pins.set_floor(1, 4)
