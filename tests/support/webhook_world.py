"""Webhooks on a database, with a chain and a receiver that a test plays, and time that it moves by hand.

Used by the contract tests of webhooks, to see the whole schedule of retries without waiting for it.
"""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw
from sqlalchemy import select

from capstan.access.models import Account, Overrides
from capstan.access.store import AccessStore
from capstan.chain.follower.models import Applied, Block, Reverted
from capstan.core.clock import ManualClock, utc
from capstan.storage.database import Database
from capstan.storage.webhook_schema import webhook_events, webhooks
from capstan.webhooks.consumer import WebhookConsumer
from capstan.webhooks.delivery.hosts import Hosts
from capstan.webhooks.delivery.lookups import KnownTokens, Lookups
from capstan.webhooks.delivery.models import Outcome, Target
from capstan.webhooks.delivery.quota import Quota
from capstan.webhooks.delivery.store import DeliveryStore
from capstan.webhooks.delivery.worker import Deliverer, DeliveryOptions
from capstan.webhooks.matching import Matcher
from capstan.webhooks.models import Webhook
from capstan.webhooks.outbox import Outbox
from capstan.webhooks.payloads import Place, TokenFacts
from capstan.webhooks.store import WebhookStore
from capstan.webhooks.subscriptions import Subscriptions

NETWORK = "ethereum/devnet"
PLACE = Place(NETWORK, "ethereum", 31337, "ETH", 18)
FORMAT_A = (10, 60, 600, 3600, 21600)
FORMAT_B = (1, 5, 30, 300, 1800, 7200, 28800)
WATCHED = "0x" + "11" * 20
OTHER = "0x" + "22" * 20


class PlayedSender:
    """Answers as a test says, and keeps what was sent and when."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.sent: list[tuple[float, str, bytes]] = []
        self.status: Callable[[str], int | None] = lambda _id: 200
        self.retry_after: float | None = None

    async def send(self, target: Target, event_id: str, body: bytes) -> Outcome:
        self.sent.append((self.clock.now(), event_id, body))
        status = self.status(event_id)
        at = int(self.clock.now() * 1_000_000)
        error = None if status is not None else "no connection"
        return Outcome(status, 1, at, error=error, response=b"said", retry_after=self.retry_after)


class World:
    """One account, its webhooks, a chain, and a deliverer."""

    def __init__(self, database: Database, *, limit: int = 0) -> None:
        self.database = database
        self.clock = ManualClock()
        self.store = WebhookStore(database)
        self.subscriptions = Subscriptions(NETWORK)
        outbox = Outbox(PLACE, self.clock, is_sqlite=database.is_sqlite)
        self.consumer = WebhookConsumer(
            NETWORK, self.subscriptions, Matcher(PLACE, self.subscriptions, wrapped=frozenset()), outbox
        )
        self.sender = PlayedSender(self.clock)
        self.account = "acc_1"
        quota = Quota(lambda _plan, _own: limit, self.clock, is_sqlite=database.is_sqlite)

        async def token(_network: str, _contract: str) -> TokenFacts:
            return TokenFacts("CAP", 18)

        async def nft(_network: str, _contract: str, _id: str) -> dict[str, Any] | None:
            return None

        self.deliverer = Deliverer(
            DeliveryStore(database, quota),
            self.sender,  # type: ignore[arg-type]  # played
            Hosts(self.clock, width=8),
            Lookups(token, nft, KnownTokens(), seconds=5),
            self.clock,
            DeliveryOptions(delays={"A": FORMAT_A, "B": FORMAT_B}, concurrency=64, poll_seconds=0.01, keep_days=7),
        )

    async def open(self) -> None:
        account = Account(self.account, "tests", "free", Overrides(), "active", datetime(2026, 1, 1, tzinfo=UTC))
        access = AccessStore(self.database)
        await access.add_account(account)
        await access.add_user(
            user_id="usr_1",
            account_id=self.account,
            email="a@example.com",
            password_hash="x",
            role="member",
            at=utc(self.clock),
        )

    async def hook(self, event_type: str, webhook_id: str = "wh_1", **config: Any) -> Webhook:
        now = utc(self.clock)
        webhook = Webhook(
            id=webhook_id,
            account_id=self.account,
            chain="ethereum",
            network=NETWORK,
            url="https://example.com/hook",
            event_type=event_type,
            config=msgspec.json.encode(config),
            status="active",
            reason=None,
            created_at=now,
            updated_at=now,
        )
        await self.store.add(webhook, b"sealed", at_most=0)
        return webhook

    async def apply(self, *blocks: Block) -> None:
        for block in blocks:
            async with self.database.write() as connection:
                await self.consumer.apply(connection, Applied(block))

    async def revert(self, block: Block) -> None:
        bare = msgspec.structs.replace(block, transactions=None, receipts=None, logs=None)
        async with self.database.write() as connection:
            await self.consumer.apply(connection, Reverted(bare))

    async def deliver(self) -> None:
        """Work off what is due now, to the end."""
        deliverer = self.deliverer
        while True:
            before = len(self.sender.sent)
            await deliverer._claims()
            await asyncio.gather(*deliverer._working)
            await deliverer._flush()
            if len(self.sender.sent) == before:
                return

    async def states(self) -> list[str]:
        async with self.database.read() as connection:
            return list(await connection.scalars(select(webhook_events.c.state).order_by(webhook_events.c.seq)))

    async def status(self, webhook_id: str = "wh_1") -> tuple[str, str | None]:
        async with self.database.read() as connection:
            query = select(webhooks.c.status, webhooks.c.reason).where(webhooks.c.id == webhook_id)
            row = (await connection.execute(query)).one()
            return row.status, row.reason

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, _, body in self.sender.sent]


def block(number: int, *, fork: str = "a", values: tuple[int, ...] = ()) -> Block:
    """A block with a transaction to the watched address for each value."""
    digest = f"0x{number:062x}{fork * 2}"
    transactions = tuple(
        Raw(
            msgspec.json.encode(
                {
                    "hash": f"0x{number:032x}{place:030x}{fork * 2}",
                    "from": OTHER,
                    "to": WATCHED,
                    "value": hex(value),
                    "input": "0x",
                    "nonce": "0x1",
                }
            )
        )
        for place, value in enumerate(values)
    )
    receipts = tuple(
        Raw(msgspec.json.encode({"gasUsed": "0x5208", "status": "0x1", "effectiveGasPrice": "0x1"})) for _ in values
    )
    header = b'{"gasUsed":"0x5208","gasLimit":"0x1c9c380","baseFeePerGas":"0x7"}'
    return Block(number, digest, f"0x{number - 1:062x}aa", 1_700_000_000 + number, header, transactions, receipts, ())
