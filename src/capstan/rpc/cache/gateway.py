"""The cache as the RPC service uses it: look now, and on a miss fetch, with equal calls made one.

Called by the RPC service for every read. `lookup_now` is synchronous, for the path that answers without a task; `fetch`
goes to the second tier, then to the upstream, and keeps the answer if it may. `apply` is called, synchronously, for
every change of a network's chain. An answer that was asked for before a change and arrives after it is given to its
asker and to nobody else. How a call reaches a node is not known here.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw

from capstan.chain.errors import DeadlinePassed
from capstan.chain.models import Family
from capstan.core.clock import Clock
from capstan.rpc.cache.coalesce import Coalescer
from capstan.rpc.cache.memory import MemoryCache, MemoryLimits
from capstan.rpc.cache.models import Binding, HeadChange, HeadView, Kind, Life, NetworkOptions, Policy, Question
from capstan.rpc.cache.policy import after, ask, judge
from capstan.rpc.cache.questions import QuestionMemo
from capstan.rpc.cache.tiers import SecondTier

Source: TypeAlias = Literal["hit", "miss", "coalesced"]
Call: TypeAlias = Callable[[], Awaitable[Raw]]

# Hashes of blocks in the chain whose numbers are remembered, for each network.
_KNOWN_BLOCKS = 1024
# Solana makes a slot every 400 ms, and nothing at its head is kept for longer.
_SLOT_SECONDS = 0.4
_DEFAULTS: dict[Family, NetworkOptions] = {
    "evm": NetworkOptions(),
    "solana": NetworkOptions(head_seconds=_SLOT_SECONDS, moment_seconds=_SLOT_SECONDS),
}


class Track:
    """What the cache knows of one network's chain."""

    __slots__ = ("head_count", "number_of", "options", "revert_count")

    def __init__(self, options: NetworkOptions | None = None) -> None:
        # None until it is configured or the family is known.
        self.options = options
        self.head_count = 0
        self.revert_count = 0
        # Blocks in the chain, the oldest first.
        self.number_of: OrderedDict[str, int] = OrderedDict()

    @property
    def persists(self) -> bool:
        """Whether final answers are kept outside the process."""
        return self.options is not None and self.options.persist

    def learn(self, block_hash: str, number: int) -> None:
        """Take a block into the chain."""
        self.number_of[block_hash.lower()] = number
        while len(self.number_of) > _KNOWN_BLOCKS:
            self.number_of.popitem(last=False)


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
        self._get = self._memory.get
        self._tier = tier
        self._coalescer: Coalescer[tuple[Raw, Source]] = Coalescer() if coalescer is None else coalescer
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
        asked = (network, method, params)
        question = self._memo.get(asked)
        if question is None:
            question = ask(network, family, method, params)
            self._memo.put(asked, question)
        if question.key:
            result = self._get(question.key)
            if result is not None:
                return result
        return self._plan(network, family, question, heads)

    async def fetch(self, plan: Plan, call: Call, timeout: float) -> tuple[Raw, Source]:
        """The answer, from the second tier or by `call`, and where it came from. Failures of `call` are raised.

        `call` may be called late or not at all, and must look at the time that is left when it is called.
        """
        if plan.policy.kind is Kind.NEVER:
            return await call(), "miss"
        # Whoever asks after a change must not be given the answer to a question from before it.
        steady = plan.policy.kind is Kind.AT_BLOCK or plan.policy.kind is Kind.PERMANENT
        flight = (plan.key, plan.revert_count, 0 if steady else plan.head_count)
        try:
            (result, source), joined = await self._coalescer.run(
                flight, lambda: self._load(plan, call), timeout=timeout
            )
        except TimeoutError as error:
            raise DeadlinePassed(f"No upstream of {plan.network} answered in time.") from error
        return result, "coalesced" if joined and source == "miss" else source

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

    def keep_final(self, network: str, key: bytes, result: bytes, last_block: int | None, since: int) -> None:
        """Keep a final answer that depends on blocks up to `last_block`, unless there were reverts since `since`."""
        track = self._track(network)
        if track.revert_count == since:
            self._memory.put(network, key, result, Binding(Life.FINAL, last_block))
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

    def _plan(self, network: str, family: Family, question: Question, heads: HeadView) -> Plan:
        track = self._track(network)
        if track.options is None:
            track.options = _DEFAULTS[family]
        policy = judge(question, heads, track.number_of)
        return Plan(network, question.key, policy, heads, track, track.head_count, track.revert_count)

    async def _load(self, plan: Plan, call: Call) -> tuple[Raw, Source]:
        policy = plan.policy
        if self._tier is not None and (policy.final or policy.kind is Kind.BY_HASH):
            kept = await self.load_final(plan.network, plan.key, policy.number if policy.final else None)
            if kept is not None:
                return Raw(kept), "hit"
        result = await call()
        self._keep(plan, result)
        return result, "miss"

    def _keep(self, plan: Plan, result: Raw) -> None:
        track = plan.track
        if track.revert_count != plan.revert_count:
            return
        binding = after(plan.policy, result, plan.heads)
        if binding is None:
            return
        if binding.life is Life.FINAL:
            self.keep_final(plan.network, plan.key, bytes(result), binding.number, plan.revert_count)
        elif binding.life is Life.BLOCK:
            self._memory.put(plan.network, plan.key, bytes(result), binding)
        elif track.head_count == plan.head_count:
            options = track.options or _DEFAULTS["evm"]
            seconds = options.head_seconds if binding.life is Life.HEAD else options.moment_seconds
            self._memory.put(plan.network, plan.key, bytes(result), binding, seconds)
