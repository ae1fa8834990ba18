"""Reads the ledger of one policy, for its owner. Called by the routes; it changes nothing."""

from datetime import UTC, datetime

from sqlalchemy import RowMapping, func, select, tuple_

from capstan.access.models import Caller
from capstan.access.store import from_micros
from capstan.core.clock import iso
from capstan.core.decimals import format_units
from capstan.core.hexes import to_checksum_address, to_data, to_quantity
from capstan.gas.policies.rules import NANO
from capstan.gas.policies.service import PolicyService
from capstan.gas.sponsor.models import SponsorshipList, SponsorshipView
from capstan.storage.database import Database
from capstan.storage.schema import gas_policies, gas_sponsorships


class SponsorshipHistory:
    """The sponsorships of policies."""

    def __init__(self, database: Database, policies: PolicyService) -> None:
        self._database = database
        self._policies = policies

    async def page(self, caller: Caller, policy_id: str, *, page: int, limit: int) -> SponsorshipList:
        """One page, the newest first. Raises `NotFound` for a policy that is not the caller's."""
        policy = await self._policies.find(caller, policy_id)
        matching = gas_sponsorships.c.policy_id == policy.id
        query = (
            select(gas_sponsorships)
            .where(matching)
            .order_by(gas_sponsorships.c.created_at.desc(), gas_sponsorships.c.id.desc())
            .offset((page - 1) * limit)
            .limit(limit)
        )
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).mappings().all()
            total = await connection.scalar(select(func.count()).select_from(gas_sponsorships).where(matching))
        return SponsorshipList([_view(row) for row in rows], page, int(total or 0))

    async def newest(
        self, caller: Caller, policy_id: str, *, after: tuple[int, str] | None, limit: int
    ) -> list[tuple[int, SponsorshipView]]:
        """The newest after the one with this time and id, each with its time in microseconds, for the dashboard."""
        policy = await self._policies.find(caller, policy_id)
        columns = gas_sponsorships.c
        query = select(gas_sponsorships).where(columns.policy_id == policy.id)
        if after is not None:
            # The first condition says the same less exactly; it is what the index is searched with.
            query = query.where(columns.created_at <= after[0], tuple_(columns.created_at, columns.id) < tuple_(*after))
        query = query.order_by(columns.created_at.desc(), columns.id.desc()).limit(limit)
        async with self._database.read() as connection:
            return [(row["created_at"], _view(row)) for row in (await connection.execute(query)).mappings()]

    async def of_operation(
        self, caller: Caller, network: str, sender: bytes, nonce: int
    ) -> tuple[str, SponsorshipView] | None:
        """The newest sponsorship that a policy of the caller gave an operation, with the id of that policy."""
        columns = gas_sponsorships.c
        query = (
            select(gas_sponsorships)
            .join(gas_policies, gas_policies.c.id == columns.policy_id)
            .where(
                columns.network == network,
                columns.sender == sender,
                columns.nonce == nonce.to_bytes(32, "big"),
                gas_policies.c.account_id == caller.account_id,
            )
            .order_by(columns.created_at.desc(), columns.id.desc())
            .limit(1)
        )
        async with self._database.read() as connection:
            row = (await connection.execute(query)).mappings().first()
        return None if row is None else (row["policy_id"], _view(row))


def _view(row: RowMapping) -> SponsorshipView:
    return SponsorshipView(
        id=row["id"],
        state=row["state"],
        sender=to_checksum_address(row["sender"]),
        nonce=to_quantity(int.from_bytes(row["nonce"], "big")),
        user_operation_hash=None if row["hash"] is None else to_data(row["hash"]),
        entry_point=to_checksum_address(row["entry_point"]),
        reserved_usd=format_units(row["reserved"], NANO),
        spent_usd=format_units(row["spent"], NANO),
        price_usd=row["price"],
        actual_gas_cost=row["actual_cost"],
        success=row["success"],
        transaction_hash=None if row["transaction_hash"] is None else to_data(row["transaction_hash"]),
        block_number=row["block_number"],
        valid_until=iso(datetime.fromtimestamp(row["valid_until"], UTC)),
        created_at=iso(from_micros(row["created_at"])),
    )
