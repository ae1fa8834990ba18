"""The cache as the RPC service uses it: look now, and on a miss fetch, with equal calls made one.

Called by the RPC service for every read. `lookup_now` is synchronous, for the path that answers without a task; `fetch`
goes to the second tier, then to the upstream, and keeps the answer if it may. `apply` is called, synchronously, for
every change of a network's chain. An answer that was asked for before a change and arrives after it is given to its
asker and to nobody else. How a call reaches a node is not known here.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Raw

from capstan.chain.errors import DeadlinePassed
from capstan.chain.models import Family
from capstan.core.clock import Clock
from capstan.core.jsonrpc import NULL
from capstan.rpc.cache.coalesce import Coalescer, Flight
from capstan.rpc.cache.memory import Entry, MemoryCache, MemoryLimits
from capstan.rpc.cache.models import (
    NEVER,
    UNCACHEABLE,
    Binding,
    HeadChange,
    HeadView,
    Kind,
    Life,
    NetworkOptions,
    Policy,
    Question,
    Shape,
    When,
)
from capstan.rpc.cache.policy import (
    BOUND_TO_HEAD,
    BOUND_TO_MOMENT,
    after,
    ask_fully,
    ask_plainly,
    judge,
    key_prefix,
)
from capstan.rpc.cache.questions import QuestionMemo
from capstan.rpc.cache.rules import RULES, Rule
from capstan.rpc.cache.tiers import SecondTier

Source: TypeAlias = Literal["hit", "miss", "coalesced"]
Call: TypeAlias = Callable[[], Awaitable[Raw]]
Lead: TypeAlias = Flight[tuple[Raw, Source]]

# Hashes of blocks in the chain whose numbers are remembered, for each network.
_KNOWN_BLOCKS = 1024
# An upstream that names a block which never comes must not keep us in doubt for ever.
_LONGEST_DOUBT_SECONDS = 10.0
# Bound once, for every call compares with them: in Python 3.11 to look up a member of an enum costs as much as a call.
_NEVER: Final = Kind.NEVER
_AT_BLOCK: Final = Kind.AT_BLOCK
_PERMANENT: Final = Kind.PERMANENT
_BY_HASH: Final = Kind.BY_HASH
_AT_HEAD: Final = Kind.AT_HEAD
_AT_NAMED: Final = When.BLOCK
_OPAQUE: Final = Shape.OPAQUE
_FINAL: Final = Life.FINAL
_BLOCK: Final = Life.BLOCK
_HEAD: Final = Life.HEAD
# Solana makes a slot every 400 ms, and nothing at its head is kept for longer.
_SLOT_SECONDS = 0.4
_DEFAULTS: dict[Family, NetworkOptions] = {
    "evm": NetworkOptions(),
    "solana": NetworkOptions(head_seconds=_SLOT_SECONDS, moment_seconds=_SLOT_SECONDS),
}


class Track:
    """What the cache knows of one network's chain."""

    __slots__ = ("at_head", "doubt_ends", "doubted", "head_count", "number_of", "options", "revert_count")

    def __init__(self, options: NetworkOptions | None = None) -> None:
        # None until it is configured or the family is known.
        self.options = options
        self.head_count = 0
        self.revert_count = 0
        # Blocks in the chain, the oldest first.
        self.number_of: OrderedDict[str, int] = OrderedDict()
        # The block that our chain must reach before what is bound to blocks is told again; and when it is anyway.
        self.doubted: int | None = None
        self.doubt_ends = 0.0
        # The policy for answers that tell nothing of their block, at the head of that number.
        self.at_head: Policy = NEVER

    @property
    def persists(self) -> bool:
        """Whether final answers are kept outside the process."""
        return self.options is not None and self.options.persist

    def learn(self, block_hash: str, number: int) -> None:
        """Take a block into the chain."""
        self.number_of[block_hash.lower()] = number
        while len(self.number_of) > _KNOWN_BLOCKS:
            self.number_of.popitem(last=False)


class Topic(msgspec.Struct, frozen=True):
    """One method of one network: what its questions have in common. Lives as long as the cache."""

    network: str
    family: Family
    # None: its answers are never kept.
    rule: Rule | None
    # What keys begin with, and the keys of params that are their own canonical text.
    prefix: bytes
    plain_prefix: bytes
    track: Track


class Plan(msgspec.Struct, frozen=True, gc=False):
    """A call that was not found in memory, and the state of the chain when that was asked."""

    network: str
    key: bytes
    policy: Policy
    heads: HeadView
    track: Track
    # Counts of the network's heads and of its reverts when the call was looked up.
    head_count: int
    revert_count: int
    question: Question


class RpcCache:
    """The answers of all networks."""

    def __init__(
        self,
        clock: Clock,
        *,
        limits: MemoryLimits | None = None,
        tier: SecondTier | None = None,
        coalescer: Coalescer[tuple[Raw, Source]] | None = None,
    ) -> None:
        self._memory = MemoryCache(clock, limits)
        self._monotonic = clock.monotonic
        self._get = self._memory.get
        self._entry = self._memory.entry
        self._touch = self._memory.touch
        self._put = self._memory.put
        self._tier = tier
        self._coalescer: Coalescer[tuple[Raw, Source]] = Coalescer() if coalescer is None else coalescer
        self._lead, self._land = self._coalescer.lead, self._coalescer.land
        self._tracks: dict[str, Track] = {}
        self._memo = QuestionMemo()

    @property
    def memory(self) -> MemoryCache:
        """The first tier, for metrics."""
        return self._memory

    def configure(self, network: str, options: NetworkOptions) -> None:
        """Set how a network's answers are kept from now on."""
        self._track(network).options = options

    def lookup_now(self, network: str, family: Family, method: str, params: bytes, heads: HeadView) -> bytes | Plan:
        """The answer as JSON text if it is in memory, else the plan to hand to `fetch`."""
        topic = self.topic(network, family, method)
        return self.look_up(topic, self.ask(topic, params), heads)

    def topic(self, network: str, family: Family, method: str) -> Topic:
        """What `ask` and `look_up` need to know of a method. For those who ask often, to be kept."""
        track = self._track(network)
        if track.options is None:
            track.options = _DEFAULTS[family]
        prefix = key_prefix(network, method)
        return Topic(network, family, RULES[family].get(method), prefix, prefix + b"=", track)

    def ask(self, topic: Topic, params: bytes) -> Question:
        """The call as a question. Does not depend on the chain, and need not be cheap twice for the same params."""
        if (rule := topic.rule) is None:
            return UNCACHEABLE
        key = topic.plain_prefix + params
        question = self.ask_known(topic, params) or self._memo.get(key)
        if question is None:
            question = ask_fully(topic.family, rule, topic.prefix, params)
            self._memo.put(key, question)
        return question

    def ask_known(self, topic: Topic, params: bytes) -> Question | None:
        """The same for params in their simplest spelling; None when they are not in it, or may be no JSON at all."""
        if (rule := topic.rule) is None:
            return None
        # An entry under the key of these very params was kept for params that were read, and are these bytes.
        key = topic.plain_prefix + params
        entry = self._entry(key)
        return ask_plainly(rule, key, params) if entry is None or entry.question is None else entry.question

    def look_up(self, topic: Topic, question: Question, heads: HeadView) -> bytes | Plan:
        """The answer to a question about the topic if it is in memory, else the plan to hand to `fetch`."""
        key, track = question.key, topic.track
        entry = self._entry(key)
        if (
            entry is not None
            and (track.doubted is None or self._is_vouched_for(entry, track, heads))
            and (entry.until is None or entry.until > self._monotonic())
        ):
            self._touch(key)
            return entry.result
        if question.when is _AT_NAMED and question.block == "latest" and question.shape is _OPAQUE:
            # So are most calls, and the policy is the same for all of them.
            latest = heads.latest_number
            policy = track.at_head
            if latest is None or policy.number != latest:
                policy = track.at_head = judge(question, heads)
        else:
            policy = judge(question, heads, track.number_of)
        return Plan(topic.network, key, policy, heads, track, track.head_count, track.revert_count, question)

    async def fetch(self, plan: Plan, call: Call, timeout: float, *, lead: Lead | None = None) -> tuple[Raw, Source]:
        """The answer, from the second tier or by `call`, and where it came from. Failures of `call` are raised.

        `call` may be called late or not at all, and must look at the time that is left when it is called. `lead` is
        what `lead` returned, for those who carry on what they began with it.
        """
        if plan.policy.kind is _NEVER:
            return await call(), "miss"
        try:
            (result, source), joined = await self._coalescer.run(
                _flight_key(plan), lambda: self._load(plan, call), timeout=timeout, led=lead
            )
        except TimeoutError as error:
            raise DeadlinePassed(f"No upstream of {plan.network} answered in time.") from error
        return result, "coalesced" if joined and source == "miss" else source

    def lead(self, plan: Plan) -> Lead | None:
        """Take it on to ask a node without waiting. None when that must be left to `fetch`.

        For calls that may be shared. One of `land`, `fetch` with the lead, or `abandon` must follow.
        """
        policy = plan.policy
        if policy.kind is _AT_HEAD:
            return self._lead((plan.key, plan.revert_count, plan.head_count))
        if (policy.final or policy.kind is _BY_HASH) and self._may_be_in_tier(plan):
            return None
        return self._lead(_flight_key(plan))

    def land(self, plan: Plan, lead: Lead, result: Raw, text: bytes) -> None:
        """A node gave this result, here as bytes too: keep it if that is allowed, and give it to those who wait."""
        self._keep(plan, result, text)
        self._land(lead, (result, "miss"))

    def abandon(self, lead: Lead) -> None:
        """The node is not asked after all, or nobody wants its answer any more. Those who wait ask by themselves."""
        self._coalescer.abandon(lead)

    def apply(self, network: str, change: HeadChange) -> None:
        """Take note of a change of the chain: drop what it ends. Must be called at once, for every change."""
        if not (change.applied or change.reverted or change.restarted):
            return
        track = self._track(network)
        if change.restarted:
            self.forget(network)
        self.forget_head(network)
        if change.reverted:
            track.revert_count += 1
        for block in change.reverted:
            self._memory.drop_block(network, block.number)
            track.number_of.pop(block.hash.lower(), None)
        for block in change.applied:
            track.learn(block.hash, block.number)

    def forget_head(self, network: str) -> None:
        """Drop what holds until the next head, as if there were one.

        For chains that make a block with every transaction: their state has changed before news of the head arrives.
        """
        self._memory.drop_head(network)
        self._track(network).head_count += 1

    def doubt(self, network: str, number: int) -> None:
        """A node has a block of that number, and it is not known whether it stands on our chain or on another branch.

        Until our chain is as long, or for a while at most, what is bound to blocks that are not final is not told.
        """
        self.forget_head(network)
        track = self._track(network)
        if track.doubted is None:
            track.doubt_ends = self._monotonic() + _LONGEST_DOUBT_SECONDS
            track.doubted = number
        else:
            track.doubted = max(track.doubted, number)

    def _is_vouched_for(self, entry: Entry, track: Track, heads: HeadView) -> bool:
        latest, doubted = heads.latest_number, track.doubted
        if doubted is None or (latest is not None and latest >= doubted) or self._monotonic() >= track.doubt_ends:
            track.doubted = None
            return True
        return entry.binding.life is not _BLOCK

    def forget(self, network: str) -> None:
        """Drop everything about a network from memory; answers that are under way are not kept either."""
        self._memory.drop_network(network)
        track = self._track(network)
        track.head_count += 1
        track.revert_count += 1
        track.number_of.clear()

    def reverts(self, network: str) -> int:
        """A count that changes whenever blocks of the network are reverted. For `keep_final`."""
        return self._track(network).revert_count

    def peek_final(self, key: bytes) -> bytes | None:
        """A final answer under a key of the caller's own, if it is in memory."""
        return self._get(key)

    async def load_final(self, network: str, key: bytes, last_block: int | None) -> bytes | None:
        """The same from the second tier, from which it goes into memory too."""
        track = self._track(network)
        if self._tier is None or not track.persists or not self._tier.may_have(key):
            return None
        since = track.revert_count
        kept = await self._tier.get(key)
        if kept is not None and track.revert_count == since:
            self._memory.put(network, key, kept, Binding(Life.FINAL, last_block))
        return kept

    def keep_final(
        self,
        network: str,
        key: bytes,
        result: bytes,
        last_block: int | None,
        since: int,
        question: Question | None = None,
    ) -> None:
        """Keep a final answer that depends on blocks up to `last_block`, unless there were reverts since `since`."""
        track = self._track(network)
        if track.revert_count == since:
            self._memory.put(network, key, result, Binding(Life.FINAL, last_block), None, question)
            if self._tier is not None and track.persists:
                self._tier.put(key, result)

    async def close(self) -> None:
        """Stop calls under way and write what is queued."""
        await self._coalescer.close()
        if self._tier is not None:
            await self._tier.close()

    def _track(self, network: str) -> Track:
        track = self._tracks.get(network)
        if track is None:
            track = self._tracks[network] = Track()
        return track

    async def _load(self, plan: Plan, call: Call) -> tuple[Raw, Source]:
        policy = plan.policy
        if self._tier is not None and (policy.final or policy.kind is Kind.BY_HASH):
            kept = await self.load_final(plan.network, plan.key, policy.number if policy.final else None)
            if kept is not None:
                return Raw(kept), "hit"
        result = await call()
        self._keep(plan, result, None)
        return result, "miss"

    def _may_be_in_tier(self, plan: Plan) -> bool:
        return self._tier is not None and plan.track.persists and self._tier.may_have(plan.key)

    def _keep(self, plan: Plan, result: Raw, text: bytes | None) -> None:
        track, policy = plan.track, plan.policy
        if track.revert_count != plan.revert_count:
            return
        if policy.kind is _AT_HEAD and policy.shape is _OPAQUE:
            # The common case, in which the answer is not looked into.
            if track.head_count == plan.head_count:
                options, text = track.options or _DEFAULTS["evm"], text or bytes(result)
                if text != NULL:
                    self._put(plan.network, plan.key, text, BOUND_TO_HEAD, options.head_seconds, plan.question)
                else:
                    self._put(plan.network, plan.key, text, BOUND_TO_MOMENT, options.moment_seconds, plan.question)
            return
        binding = after(policy, result, plan.heads)
        if binding is None:
            return
        life, text = binding.life, text or bytes(result)
        if life is _FINAL:
            self.keep_final(plan.network, plan.key, text, binding.number, plan.revert_count, plan.question)
        elif life is _BLOCK:
            self._put(plan.network, plan.key, text, binding, None, plan.question)
        elif track.head_count == plan.head_count:
            options = track.options or _DEFAULTS["evm"]
            seconds = options.head_seconds if life is _HEAD else options.moment_seconds
            self._put(plan.network, plan.key, text, binding, seconds, plan.question)


def _flight_key(plan: Plan) -> tuple[bytes, int, int]:
    """What calls must have in common to be one. Whoever asks after a change must not be given an answer from before."""
    kind = plan.policy.kind
    steady = kind is _AT_BLOCK or kind is _PERMANENT
    return (plan.key, plan.revert_count, 0 if steady else plan.head_count)
