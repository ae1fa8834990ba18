"""Asks one upstream for headers and slots, and checks what comes back.

Called by the head sources alone. It talks to exactly the upstream it is given, always with a time limit, and raises
nothing but `ChainError`. It keeps nothing and decides nothing: whether an answer is believed is decided elsewhere.
"""

import asyncio
from typing import Literal, Protocol, TypeVar

import msgspec
from msgspec import Raw

from capstan.chain.errors import UpstreamBadReply, UpstreamTimeoutError
from capstan.chain.heads.headers import Header
from capstan.core.hexes import parse_data, parse_quantity, to_data, to_quantity

Tag = Literal["latest", "safe", "finalized"]
Commitment = Literal["processed", "confirmed", "finalized"]

T = TypeVar("T")

_HASH_BYTES = 32
_PATIENCE_SECONDS = 0.5


class Caller(Protocol):
    """A client of one upstream."""

    async def call(self, method: str, params: bytes, *, timeout: float) -> Raw:
        """The result as JSON text; raises `ChainError`."""
        ...


class Member(Protocol):
    """An upstream of a network, as the pool holds it."""

    @property
    def name(self) -> str:
        """The upstream's name in the configuration."""
        ...

    @property
    def upstream(self) -> Caller:
        """For calls to exactly this upstream."""
        ...

    async def poll(self, method: str, params: bytes, *, timeout: float) -> Raw:
        """One call to exactly this upstream, which counts in what is known of it; raises `ChainError`."""
        ...

    def note_head(self, number: int) -> None:
        """Tell the pool the highest block of the chain we announce that this upstream has."""
        ...


class _Block(msgspec.Struct, rename="camel"):
    """The four members of a block that link it. All others are skipped, not decoded."""

    number: str
    hash: str
    parent_hash: str
    timestamp: str


_BLOCK: msgspec.json.Decoder[_Block | None] = msgspec.json.Decoder(_Block | None)
_COUNT = msgspec.json.Decoder(int)


async def block_by_tag(member: Member, tag: Tag, timeout: float) -> Header | None:
    """The header behind a block tag, or None when the upstream says there is no such block."""
    return await _block(member, "eth_getBlockByNumber", (tag, False), timeout)


async def block_by_number(member: Member, number: int, timeout: float) -> Header | None:
    """The header with this number on the upstream's own chain."""
    header = await _block(member, "eth_getBlockByNumber", (to_quantity(number), False), timeout)
    if header is not None and header.number != number:
        raise UpstreamBadReply(member.name, f"block {header.number} came for block {number}")
    return header


async def block_by_hash(member: Member, block_hash: str, timeout: float) -> Header | None:
    """The header with this hash."""
    header = await _block(member, "eth_getBlockByHash", (block_hash, False), timeout)
    if header is not None and header.hash != block_hash:
        raise UpstreamBadReply(member.name, "another block came than the one asked for by its hash")
    return header


async def slot(member: Member, commitment: Commitment, timeout: float) -> int:
    """The latest slot of a Solana node at a commitment."""
    return await _count(member, "getSlot", commitment, timeout)


async def block_height(member: Member, commitment: Commitment, timeout: float) -> int:
    """How many blocks a Solana node has at a commitment: fewer than slots, since some slots have none."""
    return await _count(member, "getBlockHeight", commitment, timeout)


async def _count(member: Member, method: str, commitment: Commitment, timeout: float) -> int:
    raw = await _ask(member, method, ({"commitment": commitment},), timeout)
    number = _decode(member, method, raw, _COUNT)
    if number < 0:
        raise UpstreamBadReply(member.name, f"{method} was answered with a negative number")
    return number


async def _block(member: Member, method: str, params: tuple[object, ...], timeout: float) -> Header | None:
    raw = await _ask(member, method, params, timeout)
    block = _decode(member, method, raw, _BLOCK)
    if block is None:
        return None
    try:
        return Header(
            number=parse_quantity(block.number, lenient=True),
            hash=_hash(block.hash),
            parent_hash=_hash(block.parent_hash),
            timestamp=parse_quantity(block.timestamp, lenient=True),
        )
    except ValueError as error:
        raise UpstreamBadReply(member.name, f"{method} was answered with a block that is none: {error}") from None


async def _ask(member: Member, method: str, params: tuple[object, ...], timeout: float) -> Raw:
    try:
        # The upstream keeps the time itself; only then does it count as its failure.
        async with asyncio.timeout(timeout + _PATIENCE_SECONDS):
            return await member.poll(method, msgspec.json.encode(params), timeout=timeout)
    except TimeoutError:
        raise UpstreamTimeoutError(member.name, "no answer in time") from None


def _decode(member: Member, method: str, raw: Raw, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise UpstreamBadReply(member.name, f"{method} was answered with something else") from None


def _hash(text: str) -> str:
    data = parse_data(text)
    if len(data) != _HASH_BYTES:
        raise ValueError(f"a block hash has {_HASH_BYTES} bytes")
    return to_data(data)
