"""How one read or submission gets its answer: from memory, from a call already under way, or from an upstream.

Called by the RPC service for each call that may be answered at all. It joins the cache, the log ranges, the sticky
filters, the heads and the upstream pool, and knows nothing of HTTP, keys, limits or batches. `eth_blockNumber` is
answered from the followed head, so that it never goes back; reads at the head go to upstreams that have that head.
"""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from capstan.chain.filters import FILTER_METHODS, FilterRouter
from capstan.chain.models import Attempt
from capstan.chain.pool import Repeat
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.hexes import parse_quantity, to_quantity
from capstan.rpc.cache.gateway import Plan, RpcCache, Topic
from capstan.rpc.cache.models import HeadView, Question
from capstan.rpc.cache.models import Kind as Keeping
from capstan.rpc.errands import Errand
from capstan.rpc.integrity.guard import Guard
from capstan.rpc.logs import LogReader
from capstan.rpc.methods import Kind, Method
from capstan.rpc.treatments import TELLS_HEAD

_REPEATS = {Kind.READ: Repeat.FREELY, Kind.SUBMIT: Repeat.ELSEWHERE, Kind.ACTION: Repeat.NEVER}
# Answers that name the block they are in; one beyond the followed head is news of a new head.
_NEWS = frozenset(
    {"eth_getTransactionReceipt", "eth_getTransactionByHash", "eth_getBlockByNumber", "eth_getBlockByHash"}
)
_BLOCK_BY_HASH = "eth_getBlockByHash"
# Bound once: in Python 3.11 to look up a member of an enum costs as much as a call.
_NEVER: Final = Keeping.NEVER
_LOGS = "eth_getLogs"
_DEEPEST_DIP = 256


class Heads(HeadView, Protocol):
    """The followed head of one network."""

    @property
    def is_fresh(self) -> bool:
        """Whether the head was looked for within the usual rhythm, so that it may be announced."""
        ...

    def nudge(self) -> None:
        """There may be a newer head: look for it soon."""
        ...


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A result as JSON text, and where it came from: `hit`, `miss` or `coalesced`."""

    result: bytes | Raw
    source: str


class Asking(msgspec.Struct, gc=False):
    """What the forwarder needs to know of one call."""

    network: Network
    # Whose filters may be used.
    owner: str
    method: str
    params: bytes
    kind: Method
    ends_at: float
    archive: bool
    plan: Plan | None = None
    attempts: list[Attempt] | None = None
    # What was begun already and is carried on. Used once.
    errand: Errand | None = None


class _BlockOf(msgspec.Struct):
    """The block that an answer names, under either of its names."""

    number: str | None = None
    hash: str | None = None
    parent_hash: str | None = msgspec.field(default=None, name="parentHash")
    block_number: str | None = msgspec.field(default=None, name="blockNumber")
    block_hash: str | None = msgspec.field(default=None, name="blockHash")


_block_decoder = msgspec.json.Decoder(_BlockOf | None)
_number_decoder = msgspec.json.Decoder(str)


class Forwarder:
    """Gets answers."""

    def __init__(
        self,
        cache: RpcCache,
        logs: LogReader,
        filters: FilterRouter,
        clock: Clock,
        *,
        heads: Callable[[Network], Heads],
        guard: Guard | None = None,
    ) -> None:
        self._cache = cache
        self._logs = logs
        self._filters = filters
        self._clock = clock
        self.heads = heads
        # Asks the upstreams of networks whose answers are checked.
        self._guard = guard
        self._announced: dict[str, int] = {}
        # The same as `look`, for all but the head itself.
        self.look_up = cache.look_up
        # A call as a question of a topic.
        self.question = cache.ask
        # The same for params that need not be read again.
        self.known_question = cache.ask_known

    def now(self, network: Network, method: str, params: bytes) -> bytes | Plan:
        """The answer to a read if it is in memory, else the plan to hand back with `ask`."""
        topic = self.topic(network, method)
        return self.look(network, method, topic, self.question(topic, params))

    def topic(self, network: Network, method: str) -> Topic:
        """What a method of a network means to the cache. To be kept by those who look often."""
        return self._cache.topic(network.name, network.spec.family, method)

    def look(self, network: Network, method: str, topic: Topic, question: Question) -> bytes | Plan:
        """The same as `now`, for a question of the topic."""
        heads = self.heads(network)
        if method != TELLS_HEAD:
            return self.look_up(topic, question, heads)
        if heads.latest_number is not None and heads.is_fresh:
            return _quantity(self._announce(network, heads.latest_number))
        found = self.look_up(topic, question, heads)
        return self._not_before(network, found) if isinstance(found, bytes) else found

    def _announce(self, network: Network, number: int) -> int:
        """The head to tell. While a reorganisation makes the chain shorter, the number told before is told again."""
        told = self._announced.get(network.name, 0)
        # A development chain is shortened on purpose; a chain shorter by more than this has been started anew.
        if number >= told or network.spec.dev_methods or told - number > _DEEPEST_DIP:
            self._announced[network.name] = number
            return number
        return told

    def _not_before(self, network: Network, text: bytes) -> bytes:
        """The head that a node tells, or the one told before if that is further: a node may be behind another."""
        try:
            number = parse_quantity(_number_decoder.decode(text), lenient=True)
        except (msgspec.DecodeError, ValueError):
            # Not what such an answer looks like. It is passed on as it is.
            return text
        told = self._announce(network, number)
        return text if told == number else _quantity(told)

    def begin(self, errand: Errand, seconds: float) -> bool:
        """Send a read to an upstream without waiting. False when something stands in the way: `ask` must be used.

        The errand is told of a result, which then goes to `finish`; or to carry on, with `ask`.
        """
        network, read, plan = errand.network, errand.read, errand.plan
        method = read.treatment.method
        if network.spec.integrity is not None and self._is_guarded(network, method):
            return False
        policy = plan.policy
        if policy.kind is not _NEVER:
            errand.lead = self._cache.lead(plan)
            if errand.lead is None:
                return False
        block = self._needed_block(network, plan) if policy.number is None else policy.number
        first = errand.first = network.pool.begin(method, read.params, seconds, block, read.archive, errand)
        if first is None:
            if errand.lead is not None:
                self._cache.abandon(errand.lead)
            return False
        return True

    def finish(self, errand: Errand, result: Raw) -> bytes:
        """The upstream gave this result to what was begun: keep it, share it, and take note of what it tells."""
        method = errand.read.treatment.method
        if method in _NEWS:
            self._note_news(errand.network, method, result)
        text = bytes(result)
        if errand.lead is not None:
            self._cache.land(errand.plan, errand.lead, result, text)
        return self._not_before(errand.network, text) if method == TELLS_HEAD else text

    def abandon(self, errand: Errand) -> None:
        """Nobody wants the answer to what was begun any more, and nothing was carried on."""
        if errand.first is not None:
            errand.first.give_up()
        if errand.lead is not None:
            self._cache.abandon(errand.lead)

    async def ask(self, asking: Asking) -> Answer:
        """The answer. Raises the node's error and the failures of the pool."""
        if asking.method in FILTER_METHODS and asking.network.spec.family == "evm":
            return await self._ask_filter(asking)
        if asking.kind.kind is not Kind.READ:
            result = await self._upstream(asking, asking.params)
            if asking.kind.kind is Kind.ACTION and asking.network.spec.dev_methods:
                # The chain was told to change: nothing that was said of it is certain any more.
                self._cache.forget(asking.network.name)
                self.heads(asking.network).nudge()
            return Answer(result, "miss")
        found = asking.plan or self.now(asking.network, asking.method, asking.params)
        if isinstance(found, bytes):
            return Answer(found, "hit")
        asking.plan = found
        if asking.method == _LOGS:
            heads = self.heads(asking.network)
            logs = await self._logs.get_logs(
                asking.network.name, asking.params, heads, lambda params: self._upstream(asking, params)
            )
            return Answer(logs.result, "miss" if logs.calls else "hit")
        result, source = await self._cache.fetch(
            found,
            lambda: self._read(asking),
            self._remaining(asking),
            lead=None if asking.errand is None else asking.errand.lead,
        )
        if asking.method == TELLS_HEAD:
            return Answer(self._not_before(asking.network, bytes(result)), source)
        return Answer(result, source)

    async def _ask_filter(self, asking: Asking) -> Answer:
        result = await self._filters.call(
            asking.network.pool, asking.owner, asking.method, asking.params, timeout=self._remaining(asking)
        )
        return Answer(result, "miss")

    async def _upstream(self, asking: Asking, params: bytes) -> Raw:
        errand, asking.errand = asking.errand, None
        rules = asking.network.spec.integrity
        if rules is not None and self._guard is not None and self._guard.covers(rules, asking.method):
            return await self._guard.call(
                asking.network,
                rules,
                asking.method,
                params,
                timeout=self._remaining(asking),
                archive=asking.archive,
                attempts=asking.attempts,
            )
        return await asking.network.pool.call(
            asking.method,
            params,
            timeout=self._remaining(asking),
            repeat=_REPEATS[asking.kind.kind],
            needs_block=None if asking.plan is None else self._needed_block(asking.network, asking.plan),
            archive=asking.archive,
            attempts=asking.attempts,
            begun=None if errand is None else errand.first,
        )

    def _is_guarded(self, network: Network, method: str) -> bool:
        rules = network.spec.integrity
        return rules is not None and self._guard is not None and self._guard.covers(rules, method)

    def _needed_block(self, network: Network, plan: Plan) -> int | None:
        """The block that an upstream should have. Of a read by hash it is the announced head.

        A node that has not come there, or is on another branch, would say that there is no such thing.
        """
        policy = plan.policy
        if policy.number is None and policy.kind is Keeping.BY_HASH and network.spec.family == "evm":
            return self.heads(network).latest_number
        return policy.number

    async def _read(self, asking: Asking) -> Raw:
        """The answer of an upstream. Nothing is kept, and nobody told, before its news were taken note of."""
        result = await self._upstream(asking, asking.params)
        if asking.method in _NEWS:
            self._note_news(asking.network, asking.method, result)
        return result

    def _note_news(self, network: Network, method: str, result: Raw) -> None:
        """An answer from a block beyond the followed head: what was kept for the old head holds no longer.

        If it is of another branch than the followed one, nothing that was kept is certain any more: whoever gets this
        answer knows of the new branch, and must not be told of the blocks that it replaced.
        """
        heads = self.heads(network)
        known = heads.latest_number
        try:
            named = _block_decoder.decode(result)
            number = int((named.block_number or named.number or "0x0"), 16) if named is not None else 0
        except (msgspec.DecodeError, ValueError):
            return
        if named is None or known is None:
            return
        # A block asked for by its hash may be one of a branch that was left long ago, and says nothing of the present.
        followed = None if method == _BLOCK_BY_HASH else heads.hash_at(number)
        other_branch = followed is not None and followed != (named.block_hash or named.hash or followed).lower()
        if number == known + 1 and named.parent_hash is not None:
            other_branch = named.parent_hash.lower() != heads.latest_hash
        if other_branch:
            self._cache.forget(network.name)
        elif number == known + 1 and named.parent_hash is not None:
            self._cache.forget_head(network.name)
        elif number > known:
            # Nothing links it to our chain: it may be of another branch, which leaves ours we do not know where.
            self._cache.doubt(network.name, number)
        else:
            return
        heads.nudge()

    def _remaining(self, asking: Asking) -> float:
        return max(0.001, asking.ends_at - self._clock.monotonic())


def _quantity(number: int) -> bytes:
    return b'"%b"' % to_quantity(number).encode()
