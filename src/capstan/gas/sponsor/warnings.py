"""Notes which paymasters and senders of bundles have little left, and tells the operators by mail, once each time.

Written by the watch of the funds, read by the dashboard. What is noted and the mail about it are written in one
transaction, so that of several processes, and after any restart, exactly one tells. A warning ends when there is a
tenth more than asked for: a balance that moves around its limit must not send mail all day.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal

import msgspec
from sqlalchemy import ColumnElement, RowMapping, and_, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.access.store import from_micros, to_micros
from capstan.core.clock import Clock, utc
from capstan.core.decimals import format_units
from capstan.core.hexes import to_checksum_address
from capstan.core.ids import new_id
from capstan.storage.database import Database
from capstan.storage.gas_schema import gas_warnings
from capstan.storage.webhook_schema import mails

Kind = Literal["paymaster_deposit", "signer_balance"]

_SYMBOL_DECIMALS = 18


class Fund(msgspec.Struct, frozen=True):
    """An account that must not run out of coins."""

    # `chain/network`.
    network: str
    kind: Kind
    address: bytes
    # The version of the entry point of a paymaster.
    version: str | None = None
    symbol: str = "ETH"
    decimals: int = _SYMBOL_DECIMALS


class Warned(msgspec.Struct, frozen=True):
    """One that has little left. Amounts are in wei."""

    network: str
    kind: Kind
    address: bytes
    version: str | None
    balance: int
    least: int
    since: datetime


class FundWarnings:
    """The warnings there are now."""

    def __init__(self, database: Database, clock: Clock, operators: Callable[[], Sequence[str]]) -> None:
        """`operators` are the mail addresses of those who are told."""
        self._database = database
        self._clock = clock
        self._operators = operators

    async def now(self) -> list[Warned]:
        """All of them, by network."""
        query = select(gas_warnings).order_by(gas_warnings.c.network, gas_warnings.c.kind, gas_warnings.c.address)
        async with self._database.read() as connection:
            return [_warned(row) for row in (await connection.execute(query)).mappings()]

    async def note(self, fund: Fund, balance: int, least: int) -> bool:
        """What this account has now; whether that begins a warning."""
        async with self._database.read() as connection:
            known = await connection.scalar(select(gas_warnings.c.since).where(_is(fund)))
        if balance >= least and known is None:
            return False
        async with self._database.write() as connection:
            if balance < least:
                return await self._begin(connection, fund, balance, least)
            values = {"balance": str(balance), "least": str(least)}
            query = update(gas_warnings).where(_is(fund)).values(**values)
            await connection.execute(delete(gas_warnings).where(_is(fund)) if 10 * balance >= 11 * least else query)
            return False

    async def keep(self, funds: Sequence[Fund]) -> None:
        """Forget warnings about accounts that are not looked at any more."""
        wanted = {(fund.network, fund.kind, fund.address) for fund in funds}
        gone = [each for each in await self.now() if (each.network, each.kind, each.address) not in wanted]
        if gone:
            async with self._database.write() as connection:
                for each in gone:
                    await connection.execute(delete(gas_warnings).where(_is(each)))

    async def _begin(self, connection: AsyncConnection, fund: Fund, balance: int, least: int) -> bool:
        now = to_micros(utc(self._clock))
        dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
        values = {"balance": str(balance), "least": str(least)}
        row = dialect.insert(gas_warnings).values(
            network=fund.network, kind=fund.kind, address=fund.address, version=fund.version, since=now, **values
        )
        begun = (await connection.execute(row.on_conflict_do_nothing())).rowcount
        if not begun:
            await connection.execute(update(gas_warnings).where(_is(fund)).values(**values))
            return False
        subject, body = _message(fund, balance, least)
        letters = [
            {
                "id": new_id("mail"),
                "recipient": recipient,
                "subject": subject,
                "body": body,
                "created_at": now,
                "due_at": now,
                "attempts": 0,
            }
            for recipient in self._operators()
        ]
        if letters:
            await connection.execute(insert(mails), letters)
        return True


def _is(fund: Fund | Warned) -> ColumnElement[bool]:
    columns = gas_warnings.c
    return and_(columns.network == fund.network, columns.kind == fund.kind, columns.address == fund.address)


def _warned(row: RowMapping) -> Warned:
    return Warned(
        network=row["network"],
        kind=row["kind"],
        address=row["address"],
        version=row["version"],
        balance=int(row["balance"]),
        least=int(row["least"]),
        since=from_micros(row["since"]),
    )


def _message(fund: Fund, balance: int, least: int) -> tuple[str, str]:
    address = to_checksum_address(fund.address)
    has, needs = (f"{format_units(amount, fund.decimals)} {fund.symbol}" for amount in (balance, least))
    if fund.kind == "paymaster_deposit":
        return (
            f"The paymaster on {fund.network} has little left",
            f"The paymaster {address} on {fund.network} (entry point {fund.version}) has {has} at its entry point,"
            f" less than {needs} (gas.least_deposit_gwei).\n\nWhen it is used up, sponsored operations are refused."
            f" Put coins in with:\n\n    capstan gas paymaster deposit {fund.network} AMOUNT"
            f" --entry-point {fund.version}\n",
        )
    return (
        f"A bundle signer on {fund.network} has little left",
        f"The account {address}, which sends bundles on {fund.network}, has {has}, less than {needs}"
        " (bundler.low_balance_gwei).\n\nBelow bundler.least_balance_gwei it sends no bundles. Send coins to it.\n",
    )
