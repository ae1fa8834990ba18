"""Smart wallets over SQLite and a real PostgreSQL: one row for one wallet, limits, and what the stream writes."""

import asyncio
import secrets
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from capstan.access.models import Account, Overrides
from capstan.access.store import AccessStore
from capstan.chain.follower.models import Applied, Block, Log, Reverted
from capstan.storage.database import Database, DatabaseOptions
from capstan.userops.events import ACCOUNT_DEPLOYED_TOPIC
from capstan.wallets.models import Deployment, Wallet
from capstan.wallets.store import TooManyWallets, WalletStore
from capstan.wallets.worker import WalletConsumer

NETWORK = "ethereum/devnet"
FACTORY = bytes.fromhex("13E9ed32155810FDbd067D4522C492D6f68E5944")
ENTRY_POINT = bytes.fromhex("4337084D9E255Ff0702461CF8895CE9E3b5Ff108")
UPGRADED = "0xbc7cd75a20ee27fd9adebab32041f755214dbc6bffa90cc0225b39da2e5c2d3b"
BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)
NAMES = (NETWORK,)


@pytest.fixture
async def account(database: Database) -> str:
    return await add_account(database)


async def add_account(database: Database) -> str:
    account = Account(f"acc_{secrets.token_hex(8)}", "test", "free", Overrides(), "active", BEGAN)
    await AccessStore(database).add_account(account)
    return account.id


def new_wallet(account: str, **changes: Any) -> Wallet:
    owner = secrets.token_bytes(20)
    wallet = Wallet(
        id=f"wal_{secrets.token_hex(8)}",
        account_id=account,
        chain="ethereum",
        network=NETWORK,
        address=secrets.token_bytes(20),
        owner=owner,
        owner_text="0x" + owner.hex(),
        salt=secrets.randbits(256),
        factory=FACTORY,
        entry_point=ENTRY_POINT,
        version="0.8",
        created_at=BEGAN,
        absent_at=7,
        deployed=False,
        deployment=None,
    )
    return msgspec.structs.replace(wallet, **changes)


def deployment(number: int = 10, **changes: Any) -> Deployment:
    found = Deployment(number, number.to_bytes(32, "big"), datetime.fromtimestamp(1_700_000_000, UTC), b"\x07" * 32)
    return msgspec.structs.replace(found, **changes)


async def only(store: WalletStore, wallet: Wallet) -> Wallet:
    found = await store.newest(wallet.account_id, wallet.address, NAMES)
    assert found is not None
    return found


async def test_a_wallet_is_read_as_it_was_written(database: Database, account: str) -> None:
    store = WalletStore(database)
    for wallet in (
        new_wallet(account),
        new_wallet(account, salt=0, absent_at=None, deployed=True, version="0.6"),
        new_wallet(account, salt=2**256 - 1, deployed=True, deployment=deployment(2**40)),
        new_wallet(account, deployed=True, deployment=deployment(transaction=None)),
    ):
        assert await store.add(wallet, at_most=0) == (wallet, True)
        assert await only(store, wallet) == wallet


async def test_the_same_wallet_is_written_once_by_many_processes(
    database: Database, database_url: str, account: str
) -> None:
    others = [Database(DatabaseOptions(url=database_url)) for _ in range(2)]
    stores = [WalletStore(each) for each in (database, *others)]
    wallet = new_wallet(account)
    attempts = [
        stores[turn % 3].add(msgspec.structs.replace(wallet, id=f"wal_{turn}"), at_most=1) for turn in range(12)
    ]
    async with asyncio.timeout(60):
        results = await asyncio.gather(*attempts)
    assert sum(created for _, created in results) == 1
    assert len({found.id for found, _ in results}) == 1
    assert (await stores[0].page(account, NAMES, offset=0, limit=10))[1] == 1
    for other in others:
        await other.close()


async def test_the_limit_holds_for_many_processes(database: Database, database_url: str, account: str) -> None:
    other = Database(DatabaseOptions(url=database_url))
    stores = [WalletStore(database), WalletStore(other)]
    attempts = [stores[turn % 2].add(new_wallet(account), at_most=5) for turn in range(16)]
    async with asyncio.timeout(60):
        results = await asyncio.gather(*attempts, return_exceptions=True)
    refused = [each for each in results if isinstance(each, TooManyWallets)]
    assert len(refused) == 11
    assert (await stores[0].page(account, NAMES, offset=0, limit=10))[1] == 5
    await other.close()


async def test_the_limit_counts_one_account_and_not_wallets_it_has(database: Database, account: str) -> None:
    store, other = WalletStore(database), await add_account(database)
    wallet = new_wallet(account)
    await store.add(wallet, at_most=1)
    assert (await store.add(wallet, at_most=1))[1] is False
    with pytest.raises(TooManyWallets):
        await store.add(new_wallet(account), at_most=1)
    assert (await store.add(new_wallet(other), at_most=1))[1] is True


async def test_lists_are_ordered_and_bounded(database: Database, account: str) -> None:
    store, other = WalletStore(database), await add_account(database)
    made = [new_wallet(account, created_at=BEGAN.replace(minute=minute)) for minute in range(6)]
    for wallet in (*made, new_wallet(other), new_wallet(account, network="ethereum/sepolia")):
        await store.add(wallet, at_most=0)
    page, total = await store.page(account, NAMES, offset=1, limit=3)
    assert (page, total) == (made[4:1:-1], 6)
    assert (await store.page(account, (NETWORK, "ethereum/sepolia"), offset=0, limit=100))[1] == 7
    assert await store.page(account, (), offset=0, limit=10) == ([], 0)
    assert await store.networks() == [NETWORK, "ethereum/sepolia"]


async def test_the_newest_of_several_at_an_address_is_found(database: Database, account: str) -> None:
    store = WalletStore(database)
    first = new_wallet(account)
    second = new_wallet(
        account, address=first.address, network="base/sepolia", chain="base", created_at=BEGAN.replace(hour=13)
    )
    for wallet in (second, first):
        await store.add(wallet, at_most=0)
    assert await store.newest(account, first.address, (NETWORK, "base/sepolia")) == second
    assert await store.newest(account, first.address, NAMES) == first
    assert await store.newest(await add_account(database), first.address, NAMES) is None


async def test_wallets_of_one_owner_and_salt_are_found_by_factory(database: Database, account: str) -> None:
    store = WalletStore(database)
    first = new_wallet(account)
    second = new_wallet(
        account, owner=first.owner, salt=first.salt, factory=b"\x01" * 20, created_at=BEGAN.replace(hour=13)
    )
    for wallet in (second, first, new_wallet(account)):
        await store.add(wallet, at_most=0)
    assert await store.find_same(account, NETWORK, first.owner, first.salt) == [first, second]
    assert await store.find_same(account, "base/sepolia", first.owner, first.salt) == []


async def test_a_deployment_is_noted_once_and_taken_back(database: Database, account: str) -> None:
    store = WalletStore(database)
    wallet, other = new_wallet(account), new_wallet(await add_account(database))
    other = msgspec.structs.replace(other, address=wallet.address)
    for each in (wallet, other):
        await store.add(each, at_most=0)
    await store.mark_deployed(wallet, None)
    assert (await only(store, wallet)).deployed
    await store.mark_deployed(wallet, deployment(10))
    await store.mark_deployed(wallet, deployment(11))
    for each in (wallet, other):
        assert (await only(store, each)).deployment == deployment(10)
    # Somebody who saw the wallet before that deployment was noted must not undo it.
    await store.mark_absent(wallet, block_number=9)
    assert (await only(store, wallet)).deployed
    await store.mark_absent(await only(store, wallet), block_number=9)
    assert await only(store, wallet) == msgspec.structs.replace(wallet, absent_at=9)


def block(number: int, *logs: Log, fork: int = 0) -> Block:
    block_hash = "0x" + (number + (fork << 64)).to_bytes(32, "big").hex()
    return Block(number, block_hash, "0x" + "00" * 32, 1_700_000_000 + number, b"{}", None, None, logs)


def log_of(address: bytes, *topics: str, transaction: str = "0x" + "07" * 32) -> Log:
    return Log("0x" + address.hex(), topics, 0, transaction, b"{}")


def announcement(wallet: Wallet, entry_point: bytes = ENTRY_POINT) -> Log:
    sender = "0x" + wallet.address.hex().rjust(64, "0")
    return log_of(entry_point, "0x" + ACCOUNT_DEPLOYED_TOPIC.hex(), "0x" + "01" * 32, sender)


async def tell(database: Database, delta: Applied | Reverted) -> None:
    async with database.write() as connection:
        await WalletConsumer(NETWORK).apply(connection, delta)


async def test_the_stream_deploys_and_takes_back(database: Database, account: str) -> None:
    store, wallet = WalletStore(database), new_wallet(account)
    await store.add(wallet, at_most=0)
    first = block(12, announcement(wallet))
    await tell(database, Applied(block(11)))
    await tell(database, Applied(first))
    found = await only(store, wallet)
    assert found.deployed
    expected = Deployment(12, bytes.fromhex(first.hash[2:]), datetime.fromtimestamp(1_700_000_012, UTC), b"\x07" * 32)
    assert found.deployment == expected
    # What was written in another block stays when this one goes.
    await tell(database, Reverted(block(12, fork=1)))
    assert await only(store, wallet) == found
    # A block that is taken back has its header alone.
    await tell(database, Reverted(msgspec.structs.replace(first, logs=None)))
    assert await only(store, wallet) == msgspec.structs.replace(wallet, absent_at=11)
    await tell(database, Applied(block(12, announcement(wallet), fork=1)))
    assert (await only(store, wallet)).deployed


async def test_a_transaction_that_is_rolled_back_writes_nothing(database: Database, account: str) -> None:
    store, wallet = WalletStore(database), new_wallet(account)
    await store.add(wallet, at_most=0)

    class Stopped(Exception):
        pass

    async def die() -> None:
        async with database.write() as connection:
            await WalletConsumer(NETWORK).apply(connection, Applied(block(12, announcement(wallet))))
            raise Stopped

    with pytest.raises(Stopped):
        await die()
    assert await only(store, wallet) == wallet


async def test_only_the_wallets_own_entry_point_is_believed(database: Database, account: str) -> None:
    """Any contract may emit the event for any address."""
    store, wallet = WalletStore(database), new_wallet(account)
    await store.add(wallet, at_most=0)
    await tell(database, Applied(block(12, announcement(wallet, entry_point=b"\x66" * 20))))
    assert await only(store, wallet) == wallet


async def test_a_known_account_gives_itself_away(database: Database, account: str) -> None:
    """Its proxy logs its implementation when it is created, also by a direct call of the factory."""
    store = WalletStore(database)
    known, unknown = new_wallet(account), new_wallet(account, factory=b"\x55" * 20)
    for wallet in (known, unknown):
        await store.add(wallet, at_most=0)
    logs = [log_of(wallet.address, UPGRADED, "0x" + "00" * 32) for wallet in (known, unknown)]
    await tell(database, Applied(block(12, *logs)))
    assert (await only(store, known)).deployed
    # What other accounts log and when is not known, so their word is not enough.
    assert not (await only(store, unknown)).deployed
    await tell(database, Applied(block(13, log_of(known.address, UPGRADED, "0x" + "00" * 32))))
    assert (await only(store, known)).deployment == deployment(12, at=datetime.fromtimestamp(1_700_000_012, UTC))


async def test_a_wallet_that_a_reader_saw_first_still_gets_its_transaction(database: Database, account: str) -> None:
    """A read may see the code before the stream has the block. What is only upgraded then was not deployed then."""
    store = WalletStore(database)
    announced, upgraded = new_wallet(account), new_wallet(account)
    for wallet in (announced, upgraded):
        await store.add(wallet, at_most=0)
        await store.mark_deployed(wallet, None)
    upgrade = log_of(upgraded.address, UPGRADED, "0x" + "00" * 32)
    await tell(database, Applied(block(12, announcement(announced), upgrade)))
    found = (await only(store, announced)).deployment
    assert found is not None
    assert (found.block_number, found.transaction) == (12, b"\x07" * 32)
    assert (await only(store, upgraded)).deployment is None


async def test_other_networks_and_strange_logs_are_left_alone(database: Database, account: str) -> None:
    store = WalletStore(database)
    wallet = new_wallet(account, network="base/sepolia")
    await store.add(wallet, at_most=0)
    strange = [
        log_of(ENTRY_POINT),
        log_of(ENTRY_POINT, "0x" + ACCOUNT_DEPLOYED_TOPIC.hex()),
        log_of(ENTRY_POINT, "0x" + "12" * 32, "0x" + "00" * 32),
        announcement(wallet),
    ]
    await tell(database, Applied(block(12, *strange)))
    assert await store.newest(account, wallet.address, ("base/sepolia",)) == wallet


async def test_a_chain_begun_anew_has_no_deployments(database: Database, account: str) -> None:
    store, wallet = WalletStore(database), new_wallet(account, deployed=True, deployment=deployment())
    await store.add(wallet, at_most=0)
    async with database.write() as connection:
        await WalletConsumer(NETWORK).reset(connection)
    assert await only(store, wallet) == msgspec.structs.replace(wallet, deployed=False, deployment=None, absent_at=None)
