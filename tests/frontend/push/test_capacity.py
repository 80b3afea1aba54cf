"""Fair shares of a process's capacity for pushes."""

import asyncio

from frontend.push.capacity import UNIT_BYTES, Capacity, units_of

UNITS = 120


def test_units_of_sizes() -> None:
    assert [units_of(size) for size in (0, 1, UNIT_BYTES, UNIT_BYTES + 1, 1 << 20)] == [1, 1, 1, 2, 64]


async def filled(capacity: Capacity, tenant: str, queue: int, units: int = 1) -> int:
    """Acquire for a queue until nothing is granted any more; returns the units."""
    held = 0
    while True:
        asked = asyncio.create_task(capacity.acquire(tenant, queue, units, 10))
        await settled()
        if not asked.done():
            asked.cancel()
            await asyncio.wait([asked])
            return held
        held += units * asked.result()


async def settled() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_one_queue_gets_a_third_and_leaves_room_for_others() -> None:
    capacity = Capacity(UNITS)
    first = await filled(capacity, "a", 1)
    assert UNITS // 3 - 3 <= first <= UNITS // 3
    second = await filled(capacity, "a", 2)
    assert second > 0
    assert first + second <= UNITS // 2, "a tenant holds at most half"
    other = await filled(capacity, "b", 3)
    assert other > UNITS // 8
    assert capacity.free > 0
    capacity.release("a", 1, first)
    capacity.release("a", 2, second)
    capacity.release("b", 3, other)
    assert capacity.free == UNITS


async def test_a_new_tenant_gets_something_when_all_is_held() -> None:
    capacity = Capacity(UNITS)
    held = {(str(tenant), tenant): await filled(capacity, str(tenant), tenant) for tenant in range(200)}
    assert capacity.free == 0
    late = [asyncio.create_task(capacity.acquire("late", 1000, 1, 10))]
    late.append(asyncio.create_task(capacity.acquire("0", 0, 1, 10)))
    await settled()
    assert not any(task.done() for task in late)
    capacity.release("0", 0, 1)
    await settled()
    assert late[0].result() == 1, "of the tenants that wait, the one with the least is first"
    assert not late[1].done()
    late[1].cancel()
    assert sum(held.values()) == UNITS


async def test_large_messages_are_not_kept_out_by_small_ones() -> None:
    capacity = Capacity(UNITS)
    for tenant in range(200):
        await filled(capacity, str(tenant), tenant)
    large = asyncio.create_task(capacity.acquire("large", 1000, 64, 10))
    await settled()
    small = asyncio.create_task(capacity.acquire("small", 1001, 1, 10))
    freed = 0
    for tenant in range(200):
        assert not large.done()
        assert not small.done(), "it came later"
        held = capacity._tenants[str(tenant)]
        capacity.release(str(tenant), tenant, held)
        freed += held
        await settled()
        if freed >= 64:
            break
    assert large.result() == 1
    small.cancel()


async def test_cancelled_waits_hold_nothing() -> None:
    capacity = Capacity(UNITS)
    asked = asyncio.create_task(capacity.acquire("a", 1, 1, 10))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.wait([asked])
    if not asked.cancelled():
        capacity.release("a", 1, asked.result())
    assert capacity.free == UNITS
    assert not capacity._waiting


async def test_larger_than_everything_is_granted_alone() -> None:
    capacity = Capacity(UNITS)
    assert await capacity.acquire("a", 1, 10 * UNITS, 10) == 1
    assert capacity.free == 0
    capacity.release("a", 1, UNITS)
    capacity.release("a", 1, -5)
    assert capacity.free == UNITS - 5
    capacity.release("a", 1, 5)
    assert capacity.free == UNITS
