"""Policies, sponsorships and blocks for the tests of the gas ledger, without a chain: what the stream would bring."""

import secrets
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec

from capstan.access.models import Account, Overrides
from capstan.access.store import AccessStore
from capstan.chain.follower.models import Applied, Block, Log, Reverted
from capstan.gas.policies.models import Policy, Spending
from capstan.gas.policies.store import PolicyStore
from capstan.gas.sponsor.models import Draft
from capstan.storage.database import Database
from capstan.userops.abi import word
from capstan.userops.events import OPERATION_HANDLED_TOPIC

NETWORK = "ethereum/devnet"
ENTRY_POINT = bytes.fromhex("4337084D9E255Ff0702461CF8895CE9E3b5Ff108")
PAYMASTER = b"\x77" * 20
# Noon, so that a test has to cross midnight on purpose.
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
DAY = int(NOON.timestamp()) // 86_400
PRICE = Decimal("2500.5")


async def add_policy(database: Database, rules: dict[str, Any] | None = None, **changes: Any) -> Policy:
    """A new policy of a new account."""
    account = Account(f"acc_{secrets.token_hex(8)}", "test", "free", Overrides(), "active", NOON)
    await AccessStore(database).add_account(account)
    policy = Policy(
        id=f"gp_{secrets.token_hex(8)}",
        account_id=account.id,
        name="test",
        chain="ethereum",
        network=NETWORK,
        rules=msgspec.json.encode(rules or {"max_total_usd": "1000"}).decode(),
        hook=None,
        status="active",
        all_time=Spending(),
        today=Spending(),
        from_block=0,
        created_at=NOON,
        updated_at=NOON,
    )
    policy = msgspec.structs.replace(policy, **changes)
    await PolicyStore(database).add(policy, at_most=0)
    return policy


def draft(policy: str, **changes: Any) -> Draft:
    """A sponsorship that may cost one US dollar, of a sender that nobody knew before."""
    made = Draft(
        id=f"spo_{secrets.token_hex(8)}",
        policy_id=policy,
        network=NETWORK,
        entry_point=ENTRY_POINT,
        paymaster=PAYMASTER,
        sender=secrets.token_bytes(20),
        nonce=0,
        hash=secrets.token_bytes(32),
        price=PRICE,
        cost=10**9,
        valid_until=int(NOON.timestamp()) + 600,
        created_at=NOON,
    )
    return msgspec.structs.replace(made, **changes)


def handled(given: Draft, cost: int, **changes: Any) -> Log:
    """The UserOperationEvent of a sponsored operation, as the stream brings it."""
    fields = {"hash": given.hash or secrets.token_bytes(32), "paymaster": given.paymaster, **changes}
    data = word(given.nonce) + word(1) + word(cost) + word(cost // 10**9)
    topics = (
        OPERATION_HANDLED_TOPIC,
        fields["hash"],
        given.sender.rjust(32, b"\0"),
        fields["paymaster"].rjust(32, b"\0"),
    )
    raw = msgspec.json.encode({"data": "0x" + data.hex()})
    entry_point = fields.get("entry_point", given.entry_point)
    names = tuple("0x" + topic.hex() for topic in topics)
    return Log("0x" + entry_point.hex(), names, 0, "0x" + secrets.token_hex(32), raw)


def block(number: int, *logs: Log, timestamp: int | None = None, fork: int = 0) -> Block:
    """A block with these logs; another `fork` makes another block of the same number."""
    digest = (number * 1_000 + fork).to_bytes(32, "big").hex()
    moment = int(NOON.timestamp()) + number if timestamp is None else timestamp
    return Block(number, "0x" + digest, "0x" + "00" * 32, moment, b"{}", None, None, logs)


def applied(number: int, *logs: Log, **options: Any) -> Applied:
    """The block is the tip now."""
    return Applied(block(number, *logs, **options))


def reverted(number: int, **options: Any) -> Reverted:
    """The block is taken back."""
    return Reverted(msgspec.structs.replace(block(number, **options), logs=None))
