"""Accounts, keys and the key directory, on both databases."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import select

from capstan.access.directory import KeyDirectory
from capstan.access.models import ALL_SCOPES, Account, ApiKey, IssuedKey, Overrides, Scope
from capstan.access.secrets import digest
from capstan.access.service import AccessService
from capstan.access.store import AccessStore
from capstan.core.clock import ManualClock, SystemClock
from capstan.core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from capstan.storage.database import Database, DatabaseOptions
from capstan.storage.schema import api_keys, users


@pytest.fixture
def store(database: Database) -> AccessStore:
    return AccessStore(database)


@pytest.fixture
def service(store: AccessStore) -> AccessService:
    return AccessService(store, SystemClock(), key_limit=lambda account: 3)


@pytest.fixture
async def directory(store: AccessStore) -> AsyncIterator[KeyDirectory]:
    found = KeyDirectory(store, SystemClock(), poll_seconds=0.05, last_used_flush_seconds=0.05)
    await found.start()
    yield found
    await found.close()


async def _account(service: AccessService, name: str = "one") -> Account:
    return await service.create_account(name, "free", Overrides(requests_per_second=7))


async def _key(service: AccessService, *scopes: Scope) -> IssuedKey:
    account = await _account(service)
    return await service.create_key(account.id, name="first", mode="test", scopes=scopes or None)


async def test_an_account_is_read_as_it_was_written(service: AccessService) -> None:
    account = await _account(service)
    assert await service.account(account.id) == account
    assert account.overrides.requests_per_second == 7
    assert [found.id for found in await service.accounts()] == [account.id]


async def test_a_key_is_stored_as_a_hash_only(service: AccessService, database: Database) -> None:
    issued = await _key(service)
    async with database.read() as connection:
        row = (await connection.execute(select(api_keys))).mappings().one()
    assert bytes(row["digest"]) == digest(issued.secret)
    assert issued.secret[9:] not in str(dict(row))


async def test_a_new_key_works_at_once_and_carries_its_scopes(service: AccessService, directory: KeyDirectory) -> None:
    issued = await _key(service, Scope.RPC_READ, Scope.DATA_READ)
    caller = await directory.find(issued.secret)
    assert caller is not None
    assert caller.key_id == issued.key.id
    assert caller.mode == "test"
    assert caller.scopes == {Scope.RPC_READ, Scope.DATA_READ}


async def test_a_key_without_scopes_has_them_all(service: AccessService, directory: KeyDirectory) -> None:
    caller = await directory.find((await _key(service)).secret)
    assert caller is not None
    assert caller.scopes == ALL_SCOPES


async def test_a_key_that_never_existed_is_not_found(service: AccessService, directory: KeyDirectory) -> None:
    issued = await _key(service)
    assert await directory.find(issued.secret[:-1] + ("0" if issued.secret[-1] != "0" else "1")) is None
    assert await directory.find("") is None


async def test_revocation_by_another_process_is_noticed(
    service: AccessService, directory: KeyDirectory, database_url: str
) -> None:
    issued = await _key(service)
    assert await directory.find(issued.secret) is not None
    other = Database(DatabaseOptions(url=database_url))
    try:
        elsewhere = AccessService(AccessStore(other), SystemClock(), key_limit=lambda account: 3)
        await elsewhere.revoke_key(issued.key.id)
    finally:
        await other.close()
    async with asyncio.timeout(30):
        while await directory.find(issued.secret) is not None:
            await asyncio.sleep(0.01)


async def test_suspension_is_noticed_and_lifted(service: AccessService, directory: KeyDirectory) -> None:
    issued = await _key(service)

    async def suspended() -> bool:
        caller = await directory.find(issued.secret)
        assert caller is not None
        return caller.suspended

    assert not await suspended()
    await service.set_suspended(issued.key.account_id, True)
    async with asyncio.timeout(30):
        while not await suspended():
            await asyncio.sleep(0.01)
    await service.set_suspended(issued.key.account_id, False)
    async with asyncio.timeout(30):
        while await suspended():
            await asyncio.sleep(0.01)


async def test_a_change_of_one_account_keeps_the_others_cached(service: AccessService, store: AccessStore) -> None:
    directory = KeyDirectory(store, SystemClock())
    await directory.start()
    try:
        mine, theirs = await _key(service), await _key(service)
        await directory.refresh()
        await directory.find(mine.secret)
        await directory.find(theirs.secret)
        await service.revoke_key(theirs.key.id)
        await directory.refresh()
        assert directory.find_now(mine.secret.encode()) is not None
        assert directory.find_now(theirs.secret.encode()) is None
    finally:
        await directory.close()


async def test_a_cache_that_cannot_be_refreshed_is_not_trusted(service: AccessService, store: AccessStore) -> None:
    clock = ManualClock()
    directory = KeyDirectory(store, clock, poll_seconds=3600, max_staleness_seconds=30)
    await directory.start()
    try:
        issued = await _key(service)
        await directory.refresh()
        await directory.find(issued.secret)
        assert directory.find_now(issued.secret.encode()) is not None
        clock.advance(31)
        assert directory.find_now(issued.secret.encode()) is None
    finally:
        await directory.close()


async def test_many_requests_with_a_new_key_are_one_look_up(service: AccessService, store: AccessStore) -> None:
    looked = 0

    class CountingStore(AccessStore):
        async def key_by_digest(self, digest: bytes) -> tuple[ApiKey, Account] | None:
            nonlocal looked
            looked += 1
            return await store.key_by_digest(digest)

    directory = KeyDirectory(CountingStore(store._database), SystemClock())
    await directory.start()
    try:
        issued = await _key(service)
        await directory.refresh()
        found = await asyncio.gather(*(directory.find(issued.secret) for _ in range(64)))
        assert {caller.key_id for caller in found if caller} == {issued.key.id}
        assert looked == 1
    finally:
        await directory.close()


async def test_the_cache_is_bounded(service: AccessService, store: AccessStore) -> None:
    directory = KeyDirectory(store, SystemClock(), cache_entries=2)
    await directory.start()
    try:
        issued = [await _key(service) for _ in range(3)]
        await directory.refresh()
        for one in issued:
            await directory.find(one.secret)
        assert directory.find_now(issued[0].secret.encode()) is None
        assert directory.find_now(issued[2].secret.encode()) is not None
    finally:
        await directory.close()


async def test_the_last_use_is_written(service: AccessService, directory: KeyDirectory) -> None:
    issued = await _key(service)
    await directory.find(issued.secret)
    async with asyncio.timeout(30):
        while (await service.keys())[0].last_used_at is None:
            await asyncio.sleep(0.02)


async def test_the_number_of_keys_is_limited_and_revoked_ones_do_not_count(service: AccessService) -> None:
    account = await _account(service)
    issued = [await service.create_key(account.id, name=str(index), mode="live") for index in range(3)]
    with pytest.raises(Forbidden, match="allows 3 keys"):
        await service.create_key(account.id, name="one more", mode="live")
    await service.revoke_key(issued[0].key.id)
    await service.create_key(account.id, name="in its place", mode="live")


async def test_concurrent_creation_does_not_exceed_the_number_of_keys(service: AccessService) -> None:
    account = await _account(service)
    attempts = (service.create_key(account.id, name=str(index), mode="test") for index in range(8))
    results = await asyncio.gather(*attempts, return_exceptions=True)
    assert sum(isinstance(result, IssuedKey) for result in results) == 3
    assert sum(isinstance(result, Forbidden) for result in results) == 5


async def test_revoking_twice_is_a_conflict_and_an_unknown_key_is_not_found(service: AccessService) -> None:
    issued = await _key(service)
    await service.revoke_key(issued.key.id)
    with pytest.raises(Conflict):
        await service.revoke_key(issued.key.id)
    with pytest.raises(NotFound):
        await service.revoke_key("key_none")


async def test_unknown_accounts_are_named(service: AccessService) -> None:
    with pytest.raises(NotFound, match="acc_none"):
        await service.set_suspended("acc_none", True)
    with pytest.raises(NotFound, match="acc_none"):
        await service.keys("acc_none")


@pytest.mark.parametrize("name", ["", "   ", "x" * 201, "a\nb"])
async def test_names_are_printable_and_bounded(service: AccessService, name: str) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        await service.create_account(name, "free")


async def test_a_password_is_stored_as_argon2id(service: AccessService, database: Database) -> None:
    account = await _account(service)
    await service.create_user(account.id, email=" Dev@Example.com ", password="a password", role="operator")
    async with database.read() as connection:
        row = (await connection.execute(select(users))).mappings().one()
    assert row["email"] == "dev@example.com"
    assert row["password_hash"].startswith("$argon2id$")
