"""The queries of smart wallets, and nothing else. Called by the wallet service and by the watcher of deployments.

The same wallet is one row for each account that created it, and is created once however many requests ask for it at
the same moment. What the chain says is written to the rows of all accounts.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, RowMapping, and_, func, insert, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.access.store import from_micros, to_micros
from capstan.storage.database import Database
from capstan.storage.schema import accounts, wallets
from capstan.wallets.models import Deployment, Wallet

_NOT_DEPLOYED: Mapping[str, Any] = {
    "deployed": False,
    "deploy_block": None,
    "deploy_hash": None,
    "deploy_tx": None,
    "deployed_at": None,
}
# Well below the number of parameters that either database takes in one statement.
_AT_ONCE = 500


class TooManyWallets(Exception):
    """The account has as many wallets as its plan allows."""


class WalletFilter(msgspec.Struct, frozen=True):
    """Which wallets a list shows; None is any."""

    network: str | None = None
    # That of the wallet or of its owner.
    address: bytes | None = None
    deployed: bool | None = None


class WalletStore:
    """Rows of wallets."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, wallet: Wallet, *, at_most: int) -> tuple[Wallet, bool]:
        """Write a wallet, unless the account has it already. Returns what is there now, and whether it is new.

        Raises `TooManyWallets` when the account has `at_most` others (0: no limit).
        """
        async with self._database.write() as connection:
            # The account's row is locked first, so that two processes can neither both see room for one more wallet
            # nor both write this one. SQLite has one writer at a time anyway.
            await connection.execute(select(accounts.c.id).where(accounts.c.id == wallet.account_id).with_for_update())
            same = _same(wallet.account_id, wallet.network, wallet.owner, wallet.salt)
            present = (
                (await connection.execute(select(wallets).where(same, wallets.c.factory == wallet.factory)))
                .mappings()
                .first()
            )
            if present is not None:
                return _wallet(present), False
            if at_most and await _count(connection, wallets.c.account_id == wallet.account_id) >= at_most:
                raise TooManyWallets
            await connection.execute(insert(wallets).values(**_columns(wallet)))
            return wallet, True

    async def find_same(self, account_id: str, network: str, owner: bytes, salt: int) -> list[Wallet]:
        """The wallets of an account for this owner and salt, one for each factory, the oldest first."""
        query = (
            select(wallets).where(_same(account_id, network, owner, salt)).order_by(wallets.c.created_at, wallets.c.id)
        )
        async with self._database.read() as connection:
            return [_wallet(row) for row in (await connection.execute(query)).mappings()]

    async def newest(self, account_id: str, address: bytes, networks: Collection[str]) -> Wallet | None:
        """The wallet that the account created last at this address, on one of the networks."""
        query = (
            select(wallets)
            .where(wallets.c.address == address, wallets.c.account_id == account_id, wallets.c.network.in_(networks))
            .order_by(wallets.c.created_at.desc(), wallets.c.id.desc())
            .limit(1)
        )
        async with self._database.read() as connection:
            row = (await connection.execute(query)).mappings().first()
            return None if row is None else _wallet(row)

    async def page(
        self, account_id: str, networks: Collection[str], *, offset: int, limit: int
    ) -> tuple[list[Wallet], int]:
        """Some of the account's wallets on these networks, the newest first, and how many there are."""
        matching = and_(wallets.c.account_id == account_id, wallets.c.network.in_(networks))
        query = (
            select(wallets)
            .where(matching)
            .order_by(wallets.c.created_at.desc(), wallets.c.id.desc())
            .offset(offset)
            .limit(limit)
        )
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).mappings().all()
            return [_wallet(row) for row in rows], await _count(connection, matching)

    async def newest_of(
        self, account_id: str, wanted: WalletFilter, *, after: tuple[int, str] | None, limit: int
    ) -> list[Wallet]:
        """The account's wallets, the newest first, after the one created then (in microseconds) with that id."""
        columns = wallets.c
        query = select(wallets).where(columns.account_id == account_id)
        if wanted.network is not None:
            query = query.where(columns.network == wanted.network)
        if wanted.address is not None:
            query = query.where(or_(columns.address == wanted.address, columns.owner == wanted.address))
        if wanted.deployed is not None:
            query = query.where(columns.deployed.is_(wanted.deployed))
        if after is not None:
            query = query.where(tuple_(columns.created_at, columns.id) < tuple_(*after))
        query = query.order_by(columns.created_at.desc(), columns.id.desc()).limit(limit)
        async with self._database.read() as connection:
            return [_wallet(row) for row in (await connection.execute(query)).mappings()]

    async def any_of(self, account_id: str) -> bool:
        """Whether the account has a wallet."""
        async with self._database.read() as connection:
            return (
                await connection.scalar(select(wallets.c.id).where(wallets.c.account_id == account_id).limit(1))
            ) is not None

    async def networks(self) -> list[str]:
        """The networks on which there are wallets of anybody."""
        async with self._database.read() as connection:
            return list(await connection.scalars(select(wallets.c.network).distinct().order_by(wallets.c.network)))

    async def mark_deployed(self, wallet: Wallet, deployment: Deployment | None) -> None:
        """Note that the wallet is on the chain. What is known already of where it appeared is kept."""
        values: dict[str, Any] = {"deployed": True}
        unknown: ColumnElement[bool] = wallets.c.deployed.is_(False)
        if deployment is not None:
            values |= _deployment_columns(deployment)
            unknown = or_(unknown, wallets.c.deploy_tx.is_(None))
        async with self._database.write() as connection:
            await connection.execute(update(wallets).where(_at(wallet), unknown).values(**values))

    async def mark_absent(self, wallet: Wallet, *, block_number: int) -> None:
        """Note that the wallet is no longer on the chain, unless another deployment was noted since it was read."""
        known = None if wallet.deployment is None else wallet.deployment.block_hash
        unchanged = wallets.c.deploy_hash.is_(None) if known is None else wallets.c.deploy_hash == known
        async with self._database.write() as connection:
            await connection.execute(
                update(wallets)
                .where(_at(wallet), wallets.c.deployed.is_(True), unchanged)
                .values(**_NOT_DEPLOYED, absent_at=block_number)
            )


class Watched(msgspec.Struct, frozen=True):
    """A wallet whose deployment is not known; it may have been seen to be deployed all the same."""

    address: bytes
    factory: bytes
    entry_point: bytes
    deployed: bool


async def watched_among(connection: AsyncConnection, network: str, addresses: Collection[bytes]) -> list[Watched]:
    """Which of the addresses are wallets whose deployment is not known."""
    columns = (wallets.c.address, wallets.c.factory, wallets.c.entry_point, wallets.c.deployed)
    found: list[Watched] = []
    ordered = sorted(addresses)
    for start in range(0, len(ordered), _AT_ONCE):
        rows = await connection.execute(
            select(*columns)
            .where(
                wallets.c.address.in_(ordered[start : start + _AT_ONCE]),
                wallets.c.network == network,
                wallets.c.deploy_tx.is_(None),
            )
            .distinct()
        )
        found += [Watched(*row) for row in rows]
    return found


async def note_deployment(connection: AsyncConnection, network: str, address: bytes, deployment: Deployment) -> None:
    """Write where a wallet appeared, in the transaction of its block."""
    await connection.execute(
        update(wallets)
        .where(wallets.c.network == network, wallets.c.address == address, wallets.c.deploy_tx.is_(None))
        .values(deployed=True, **_deployment_columns(deployment))
    )


async def take_back_block(connection: AsyncConnection, network: str, block_hash: bytes, block_number: int) -> None:
    """Undo the deployments of a block that is no longer on the chain."""
    await connection.execute(
        update(wallets)
        .where(wallets.c.network == network, wallets.c.deploy_hash == block_hash)
        .values(**_NOT_DEPLOYED, absent_at=max(0, block_number - 1))
    )


async def forget_deployments(connection: AsyncConnection, network: str) -> None:
    """Note that no wallet of the network is deployed: its chain was begun anew."""
    await connection.execute(
        update(wallets).where(wallets.c.network == network).values(**_NOT_DEPLOYED, absent_at=None)
    )


async def _count(connection: AsyncConnection, condition: ColumnElement[bool]) -> int:
    return int(await connection.scalar(select(func.count()).select_from(wallets).where(condition)) or 0)


def _same(account_id: str, network: str, owner: bytes, salt: int) -> ColumnElement[bool]:
    return and_(
        wallets.c.account_id == account_id,
        wallets.c.network == network,
        wallets.c.owner == owner,
        wallets.c.salt == salt.to_bytes(32, "big"),
    )


def _at(wallet: Wallet) -> ColumnElement[bool]:
    return and_(wallets.c.address == wallet.address, wallets.c.network == wallet.network)


def _deployment_columns(deployment: Deployment) -> dict[str, Any]:
    return {
        "deploy_block": deployment.block_number,
        "deploy_hash": deployment.block_hash,
        "deploy_tx": deployment.transaction,
        "deployed_at": to_micros(deployment.at),
    }


def _columns(wallet: Wallet) -> dict[str, Any]:
    known = {} if wallet.deployment is None else _deployment_columns(wallet.deployment)
    return {
        "id": wallet.id,
        "account_id": wallet.account_id,
        "chain": wallet.chain,
        "network": wallet.network,
        "address": wallet.address,
        "owner": wallet.owner,
        "owner_text": wallet.owner_text,
        "salt": wallet.salt.to_bytes(32, "big"),
        "factory": wallet.factory,
        "entry_point": wallet.entry_point,
        "version": wallet.version,
        "created_at": to_micros(wallet.created_at),
        "absent_at": wallet.absent_at,
        **_NOT_DEPLOYED,
        **known,
        "deployed": wallet.deployed,
    }


def _wallet(row: RowMapping) -> Wallet:
    deployment = None
    if row["deploy_block"] is not None:
        deployment = Deployment(
            block_number=row["deploy_block"],
            block_hash=row["deploy_hash"],
            at=from_micros(row["deployed_at"]),
            transaction=row["deploy_tx"],
        )
    return Wallet(
        id=row["id"],
        account_id=row["account_id"],
        chain=row["chain"],
        network=row["network"],
        address=row["address"],
        owner=row["owner"],
        owner_text=row["owner_text"],
        salt=int.from_bytes(row["salt"], "big"),
        factory=row["factory"],
        entry_point=row["entry_point"],
        version=row["version"],
        created_at=from_micros(row["created_at"]),
        absent_at=row["absent_at"],
        deployed=row["deployed"],
        deployment=deployment,
    )
