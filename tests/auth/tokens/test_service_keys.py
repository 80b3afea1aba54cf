"""The service's own keys: shared, rotated, and deleted in time."""

import asyncio

from auth.credentials import ServiceKey
from auth.tokens.service_keys import KEEP_SECONDS, ROTATE_SECONDS, ServiceKeys, lasting_secret
from tests.auth.credential_world import CredentialWorld


def keys_of(world: CredentialWorld, purpose: str = "session") -> ServiceKeys:
    return ServiceKeys(world.store.credentials, purpose, clock=world.clock)


async def test_one_key_serves_all_processes(world: CredentialWorld) -> None:
    one, other = keys_of(world), keys_of(world)
    first = await one.current()
    assert await other.current() == await one.current() == first
    assert len(first.secret) == 32
    assert other.get(first.key_id) == first


async def test_twins_make_one_key(world: CredentialWorld) -> None:
    keys = keys_of(world)
    assert len({key.key_id for key in await asyncio.gather(*(keys.current() for _ in range(5)))}) == 1
    assert len(await world.store.credentials.list_service_keys("session")) == 1


async def test_purposes_do_not_mix(world: CredentialWorld) -> None:
    session, token = keys_of(world), keys_of(world, "token")
    first = await session.current()
    assert await token.find(first.key_id) is None
    assert await token.current() != first


async def test_keys_are_replaced_and_verify_for_a_while_longer(world: CredentialWorld) -> None:
    one, other = keys_of(world), keys_of(world)
    first = await one.current()
    await other.current()
    world.clock.now += ROTATE_SECONDS - 1
    assert await one.current() == first
    world.clock.now += 1
    second = await one.current()
    assert second != first
    assert await one.find(first.key_id) == first
    assert await other.find(second.key_id) == second
    world.clock.now += KEEP_SECONDS
    assert await one.find(first.key_id) == first  # no third one exists yet
    world.clock.now += ROTATE_SECONDS - KEEP_SECONDS
    third = await one.current()
    assert await one.find(first.key_id) is None
    assert {key.key_id for key in await world.store.credentials.list_service_keys("session")} == {
        second.key_id,
        third.key_id,
    }


async def test_made_up_ids_cost_one_look_a_second(world: CredentialWorld) -> None:
    keys = keys_of(world)
    await keys.current()
    looks = world.faults.calls.count("list_service_keys")
    world.clock.now += 1
    for number in range(20):
        assert await keys.find(f"{number:016x}") is None
    assert world.faults.calls.count("list_service_keys") == looks + 1
    other = keys_of(world)
    world.clock.now += ROTATE_SECONDS
    fresh = await other.current()
    assert await keys.find(fresh.key_id) == fresh


async def test_a_clock_set_back_does_not_hide_new_keys(world: CredentialWorld) -> None:
    keys = keys_of(world)
    await keys.current()
    world.clock.now -= 3600
    other = keys_of(world)
    world.clock.now += ROTATE_SECONDS + 3600
    fresh = await other.current()
    world.clock.now -= ROTATE_SECONDS + 7200
    assert await keys.find(fresh.key_id) == fresh


async def test_concurrent_requests_for_a_lasting_secret_get_the_same(world: CredentialWorld) -> None:
    found = await asyncio.gather(
        *(lasting_secret(world.store.credentials, "naming", clock=world.clock) for _ in range(5))
    )
    assert len(set(found)) == 1
    assert len(await world.store.credentials.list_service_keys("naming")) == 1


async def test_a_lasting_secret_is_never_replaced(world: CredentialWorld) -> None:
    first = await lasting_secret(world.store.credentials, "naming", clock=world.clock)
    assert len(first) == 32
    world.clock.now += 1
    await world.store.credentials.put_service_key(
        ServiceKey("0" * 16, "naming", b"of a process that raced at the first start", 2**40)
    )
    world.clock.now += 100 * (ROTATE_SECONDS + KEEP_SECONDS)
    await keys_of(world).current()
    assert await lasting_secret(world.store.credentials, "naming", clock=world.clock) == first
    assert await lasting_secret(world.store.credentials, "other", clock=world.clock) != first
