"""What the wallets do when a node answers falsely, or the head moves while it is read."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from capstan.chain.calls.models import BlockChanged, BlockRef, ContractCall
from capstan.chain.models import NetworkSpec
from capstan.core.errors import UpstreamError
from capstan.core.hexes import to_checksum_address
from capstan.wallets.chain import WalletChain
from capstan.wallets.factories import computed_address, known_factories

FACTORY = bytes.fromhex("13E9ed32155810FDbd067D4522C492D6f68E5944")
OWNER = bytes.fromhex("70997970C51812dc3A010C7d01b50e0d17dc79C8")
SPEC = NetworkSpec(chain="ethereum", network="devnet", family="evm", upstreams=(), block_time_ms=1000)


class Heads:
    """A head that is always there."""

    def __init__(self) -> None:
        self.asked = 0

    async def latest(self, _network: object) -> BlockRef:
        self.asked += 1
        return BlockRef(self.asked, "0x" + "00" * 32, 0)


class Reader:
    """Answers what a test tells it to; a lying node cannot be had from the real ones."""

    def __init__(self, *answers: bytes | Exception | None) -> None:
        self._answers = list(answers)

    async def read(self, _network: object, _block: BlockRef, calls: Sequence[ContractCall]) -> list[bytes | None]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [answer for _ in calls]

    async def has_code(self, _network: object, _block: BlockRef, _address: bytes) -> bool:
        return False


class OneNetwork:
    """The network, which nothing here calls."""

    spec = SPEC
    name = SPEC.name


def chain_with(*answers: bytes | Exception | None) -> tuple[WalletChain, Heads]:
    heads = Heads()
    return WalletChain(cast(Any, heads), cast(Any, Reader(*answers))), heads


def padded(address: bytes) -> bytes:
    return address.rjust(32, b"\0")


async def test_an_address_that_the_code_does_not_give_is_an_error_that_names_both() -> None:
    wrong = b"\x11" * 20
    chain, _ = chain_with(padded(wrong))
    right = computed_address(FACTORY, OWNER, 5)
    assert right is not None
    with pytest.raises(UpstreamError) as caught:
        await chain.locate(cast(Any, OneNetwork()), FACTORY, OWNER, 5)
    assert to_checksum_address(wrong) in caught.value.message
    assert to_checksum_address(right) in caught.value.message


async def test_the_word_of_an_unknown_factory_is_taken() -> None:
    chain, _ = chain_with(padded(b"\x11" * 20))
    address, block, deployed = await chain.locate(cast(Any, OneNetwork()), b"\x22" * 20, OWNER, 5)
    assert (address, block.number, deployed) == (b"\x11" * 20, 1, False)


@pytest.mark.parametrize("answer", [None, b"", b"\x01" * 31, bytes(32), b"\xff" * 32])
async def test_a_factory_that_tells_no_address_is_an_error(answer: bytes | None) -> None:
    chain, _ = chain_with(answer)
    with pytest.raises(UpstreamError, match="does not tell an address"):
        await chain.locate(cast(Any, OneNetwork()), b"\x22" * 20, OWNER, 5)


async def test_a_head_that_was_replaced_is_asked_for_again() -> None:
    chain, heads = chain_with(BlockChanged("replaced"), (7).to_bytes(32, "big"))
    sight = await chain.look(cast(Any, OneNetwork()), b"\x33" * 20, b"\x11" * 20)
    assert (sight.nonce, sight.block.number, heads.asked) == (7, 2, 2)


async def test_a_head_that_never_stands_still_ends_in_an_error() -> None:
    chain, heads = chain_with(*(BlockChanged("replaced") for _ in range(9)))
    with pytest.raises(UpstreamError, match="changes too fast"):
        await chain.look(cast(Any, OneNetwork()), b"\x33" * 20, b"\x11" * 20)
    assert heads.asked == 3


async def test_an_entry_point_that_is_not_there_is_an_error() -> None:
    chain, _ = chain_with(b"")
    with pytest.raises(UpstreamError, match="does not tell a nonce"):
        await chain.look(cast(Any, OneNetwork()), b"\x33" * 20, b"\x11" * 20)


def test_every_published_factory_is_known() -> None:
    assert FACTORY in known_factories()
    assert len(known_factories()) == 3
    assert computed_address(b"\x22" * 20, OWNER, 0) is None
