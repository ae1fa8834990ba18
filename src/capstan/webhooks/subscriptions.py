"""The webhooks of one network in memory, found by what an event is about, never by looking through all of them.

Used by matching. Each webhook is entered under the most telling of its filters: under every address it watches, or
under every contract, and so on; only one without any is looked at for every event. `refresh` reads what has changed,
inside the transaction of the block, so the webhooks that count for a block are those committed before it.
"""

from collections.abc import Iterable, Iterator

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.storage.webhook_schema import webhook_revisions, webhooks
from capstan.webhooks.filters import Filters, is_idle, parse_filters
from capstan.webhooks.kinds import EVENT_TYPES, EventType, Family

# Keys of the tables: what the bytes behind the first one are.
ADDRESS, SENDER, RECEIVER, CONTRACT, TOKEN_ID, HASH, SELECTOR = b"a", b"s", b"r", b"c", b"i", b"h", b"m"
TOPICS = (b"0", b"1", b"2", b"3")
ALL = b""
_CONFIG = msgspec.json.Decoder(dict[str, object])


class Subscription(msgspec.Struct, frozen=True, eq=False):
    """One webhook, as far as matching needs it."""

    id: str
    kind: EventType
    filters: Filters
    # A paused one collects events, which nobody delivers before it is resumed.
    active: bool


class Subscriptions:
    """The webhooks of one network."""

    def __init__(self, network: str) -> None:
        self._network = network
        self._revision = 0
        self._known: dict[str, Subscription] = {}
        self._tables: dict[Family, dict[bytes, dict[str, Subscription]]] = {family: {} for family in Family}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, webhook_id: str) -> Subscription | None:
        """A webhook that is active or paused."""
        return self._known.get(webhook_id)

    def wants(self, *families: Family) -> bool:
        """Whether any webhook looks at one of these."""
        return any(self._tables[family] for family in families)

    def find(self, family: Family, keys: Iterable[bytes]) -> Iterator[Subscription]:
        """The webhooks entered under one of the keys, or under none, each once."""
        table = self._tables[family]
        if not table:
            return
        seen: set[str] = set()
        for key in (*keys, ALL):
            for subscription in table.get(key, {}).values():
                if subscription.id not in seen:
                    seen.add(subscription.id)
                    yield subscription

    def put(self, subscription: Subscription) -> None:
        """Enter a webhook, in place of what it was before."""
        self.remove(subscription.id)
        self._known[subscription.id] = subscription
        table = self._tables[subscription.kind.family]
        for key in _keys(subscription):
            table.setdefault(key, {})[subscription.id] = subscription

    def remove(self, webhook_id: str) -> None:
        """Forget a webhook."""
        old = self._known.pop(webhook_id, None)
        if old is None:
            return
        table = self._tables[old.kind.family]
        for key in _keys(old):
            entered = table[key]
            del entered[webhook_id]
            if not entered:
                del table[key]

    async def refresh(self, connection: AsyncConnection) -> None:
        """Take over what was committed since."""
        newest = await connection.scalar(
            select(webhook_revisions.c.revision).where(webhook_revisions.c.network == self._network)
        )
        if newest is None or newest <= self._revision:
            return
        columns = (webhooks.c.id, webhooks.c.event_type, webhooks.c.config, webhooks.c.status, webhooks.c.revision)
        rows = await connection.execute(
            select(*columns).where(webhooks.c.network == self._network, webhooks.c.revision > self._revision)
        )
        for row in rows:
            newest = max(newest, row.revision)
            if row.status == "disabled":
                self.remove(row.id)
                continue
            kind = EVENT_TYPES[row.event_type]
            filters = parse_filters(kind, _CONFIG.decode(row.config))
            self.put(Subscription(row.id, kind, filters, row.status == "active"))
        self._revision = newest


def _keys(subscription: Subscription) -> list[bytes]:
    """Under what a webhook is entered: under everything that could be the reason why it matches."""
    filters = subscription.filters
    if is_idle(subscription.kind, filters):
        return []
    for tag, values in (
        (HASH, filters.tx_hashes),
        (ADDRESS, filters.addresses),
        (SENDER, filters.senders),
        (RECEIVER, filters.receivers),
        (CONTRACT, filters.contracts),
        (SELECTOR, filters.selectors),
    ):
        if values:
            return [tag + value for value in values]
    if filters.token_ids:
        return [TOKEN_ID + token_id.to_bytes(32, "big") for token_id in filters.token_ids]
    for tag, topics in zip(TOPICS, filters.topics, strict=False):
        if topics:
            return [tag + topic for topic in topics]
    return [ALL]
