"""What a colleague tells of heads: another process that asks the same upstreams and shares their answers.

Part of a head tracker. An answer counts the same whoever asked, so nothing changes in how the head is chosen: what is
told goes through the same linking and the same rule. An upstream that a colleague asks often enough need not be asked
again. When nothing is told any more, the tracker asks by itself; no decision is needed for that.
"""

import asyncio
from collections.abc import Sequence

import structlog

from capstan.chain.heads.evm import EvmHeads
from capstan.chain.heads.headers import Header
from capstan.chain.heads.reading import Member
from capstan.core.clock import Clock

log = structlog.get_logger(__name__)

# How much later than our own question a colleague's answer may come.
_GRACE_SECONDS = 0.5


class Colleague:
    """The answers of upstreams that another process has asked."""

    def __init__(self, heads: EvmHeads, network: str, clock: Clock) -> None:
        self._heads = heads
        self._network = network
        self._clock = clock
        # When each upstream was asked last, on our clock.
        self._told_at: dict[Member, float] = {}
        self._finality_told_at = float("-inf")
        self._told: dict[Member, tuple[Header, float]] = {}
        self._taking: dict[Member, asyncio.Task[None]] = {}

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What is under way."""
        return list(self._taking.values())

    def tells(self, member: Member, seconds: float) -> bool:
        """Whether the upstream was asked within this time, or a little more."""
        told_at = self._told_at.get(member)
        return told_at is not None and self._clock.monotonic() - told_at <= seconds + _GRACE_SECONDS

    def tells_finality(self, seconds: float) -> bool:
        """Whether finality was told within this time, or a little more."""
        return self._clock.monotonic() - self._finality_told_at <= seconds + _GRACE_SECONDS

    def tell(self, member: Member, header: Header, way: Sequence[Header], asked_at: float) -> None:
        """The upstream had this head when it was asked; `way` are headers between our chain and that."""
        asked_at = min(asked_at, self._clock.monotonic())
        for link in way:
            self._heads.chain.remember(link)
        self._told_at[member] = max(asked_at, self._told_at.get(member, asked_at))
        self._told[member] = (header, asked_at)
        if member not in self._taking:
            self._taking[member] = asyncio.create_task(self._take(member), name=f"told of {self._network}")

    def tell_finality(self, finalized: int, block_hash: str | None, safe: int | None) -> None:
        """This block is final, and that one safe."""
        self._finality_told_at = self._clock.monotonic()
        self._heads.told_finality(finalized, block_hash, safe)

    def forget(self) -> bool:
        """Nothing is told any more. Whether anything was."""
        was_told = bool(self._told_at)
        self._told_at.clear()
        self._finality_told_at = float("-inf")
        return was_told

    def drop(self, member: Member) -> None:
        """The network does not have this upstream any more."""
        self._told_at.pop(member, None)
        self._told.pop(member, None)
        task = self._taking.pop(member, None)
        if task is not None:
            task.cancel()

    async def _take(self, member: Member) -> None:
        """Take over what was told. It may have to be linked to our chain, which waits; then only the newest counts."""
        try:
            while (told := self._told.pop(member, None)) is not None:
                await self._heads.observe(member, told[0], told_at=told[1])
                self._heads.chain.prepend_known()
        except Exception:
            # A mistake of ours: the tracker asks by itself when nothing is told.
            log.exception("head.mistake", network=self._network, upstream=member.name)
        finally:
            self._taking.pop(member, None)
