"""What the bundler asks of its network: simulations of bundles, stakes and deposits, and the state of its signers.

Called by validation, the methods and the worker of one network. It keeps nothing, decides nothing about operations, and
lets the failures of the upstreams go through.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from capstan.bundler.entries import EntryPoint
from capstan.chain.calls.decoding import unsigned_at
from capstan.chain.calls.models import BlockRef, selector
from capstan.chain.errors import NodeError, NodeUnable
from capstan.chain.registry import Network
from capstan.chain.reverts import revert_data
from capstan.chain.run import Repeat
from capstan.core.errors import UpstreamError
from capstan.core.hexes import parse_data, parse_quantity, to_data, to_quantity
from capstan.userops.abi import address_word, word
from capstan.userops.codec import encode_handle_ops
from capstan.userops.models import UserOperation
from capstan.userops.simulation import delegation_code

T = TypeVar("T")

# EIP-7702: the code of an account that delegates is this and the address of the contract.
_DELEGATION = bytes.fromhex("ef0100")
_NO_CODE = ("0x", "0x0")
_DEPOSIT_INFO = selector("getDepositInfo(address)")
_GET_NONCE = selector("getNonce(address,uint192)")
_QUESTION_GAS = 200_000


class HeadBlock(msgspec.Struct, frozen=True):
    """The latest block with what bundling needs to know of it."""

    ref: BlockRef
    base_fee: int
    gas_limit: int


class Deposit(msgspec.Struct, frozen=True):
    """What an address has at the entry point, in wei and seconds."""

    amount: int
    stake: int
    unstake_delay: int


class Receipt(msgspec.Struct, frozen=True):
    """The part of a transaction's receipt that the worker looks at."""

    block_number: int
    block_hash: bytes
    success: bool


class Reverted(Exception):
    """A simulated call reverted; `data` is what with, None when the node does not say."""

    def __init__(self, data: bytes | None, message: str) -> None:
        super().__init__(message)
        self.data = data
        self.message = message


class _Block(msgspec.Struct, frozen=True, rename="camel"):
    number: str
    hash: str
    timestamp: str
    gas_limit: str
    base_fee_per_gas: str | None = None


class _Receipt(msgspec.Struct, frozen=True, rename="camel"):
    block_number: str
    block_hash: str
    status: str = "0x1"


class BundlerChain:
    """Reads of one network, and the sending of transactions. `network` is asked each time: a reload may replace it."""

    def __init__(self, network: Callable[[], Network]) -> None:
        self._network = network

    @property
    def network(self) -> Network:
        """The network as it is served now."""
        return self._network()

    async def head(self) -> HeadBlock:
        """The latest block."""
        return await self.block("latest")

    async def block(self, tag: str) -> HeadBlock:
        """The block of a tag or number."""
        found = await self._request(_Block, "eth_getBlockByNumber", [tag, False])
        if found is None:
            raise UpstreamError(f"the nodes of {self.network.name} do not have block {tag}")
        ref = BlockRef(_number(found.number), found.hash.lower(), _number(found.timestamp))
        return HeadBlock(ref, _number(found.base_fee_per_gas or "0x0"), _number(found.gas_limit))

    async def run_bundle(
        self,
        entry_point: EntryPoint,
        operations: Sequence[UserOperation],
        *,
        sender: bytes,
        beneficiary: bytes,
        gas: int,
        block: BlockRef | None = None,
    ) -> None:
        """Run handleOps with these operations on the state of a block, the latest unless told. Raises `Reverted`."""
        data = encode_handle_ops(entry_point.version, operations, beneficiary)
        codes = {each.sender: code for each in operations if (code := delegation_code(each)) is not None}
        await self.call(sender, entry_point.address, data, gas=gas, block=block, codes=codes)

    async def call(
        self,
        sender: bytes,
        to: bytes,
        data: bytes,
        *,
        gas: int,
        block: BlockRef | None = None,
        codes: Mapping[bytes, str] | None = None,
    ) -> bytes:
        """What a call returns, with these codes in the place of those the accounts have. Raises `Reverted`."""
        transaction: dict[str, Any] = {
            "from": to_data(sender),
            "to": to_data(to),
            "data": to_data(data),
            "gas": to_quantity(gas),
        }
        at = "latest" if block is None else to_quantity(block.number)
        arguments: list[Any] = [transaction, at]
        if codes:
            # A tuple of EIP-7702 as its effect: not every node takes tuples in a call.
            arguments.append({to_data(address): {"code": code} for address, code in codes.items()})
        params = msgspec.json.encode(arguments)
        try:
            answer = await self.network.pool.call(
                "eth_call", params, needs_block=None if block is None else block.number
            )
        except NodeUnable:
            raise
        except NodeError as error:
            raise Reverted(revert_data(error), error.message) from error
        return parse_data(msgspec.json.decode(answer, type=str))

    async def deposits(self, entry_point: bytes, addresses: Iterable[bytes]) -> dict[bytes, Deposit]:
        """Deposit and stake of each address at the entry point."""
        wanted = list(dict.fromkeys(addresses))

        async def one(address: bytes) -> Deposit:
            answer = await self.call(bytes(20), entry_point, _DEPOSIT_INFO + address_word(address), gas=_QUESTION_GAS)
            amount, stake, delay = (unsigned_at(answer, place) for place in (0, 2, 3))
            if amount is None or stake is None or delay is None:
                raise UpstreamError(
                    f"the entry point {to_data(entry_point)} on {self.network.name} does not tell deposits;"
                    " the operator must check the network's entry points"
                )
            return Deposit(amount, stake, delay)

        return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))

    async def next_nonce(self, entry_point: bytes, sender: bytes, key: int) -> int:
        """The nonce that the entry point expects of a sender's next operation with this key."""
        question = _GET_NONCE + address_word(sender) + word(key)
        return int.from_bytes(await self.call(bytes(20), entry_point, question, gas=_QUESTION_GAS), "big")

    async def has_code(self, address: bytes) -> bool:
        """Whether there is a contract at the address."""
        return await self.network.pool.request_as(str, "eth_getCode", [to_data(address), "latest"]) not in _NO_CODE

    async def delegate(self, account: bytes) -> bytes | None:
        """The contract that an account of its own key delegates to (EIP-7702)."""
        code = parse_data(await self.network.pool.request_as(str, "eth_getCode", [to_data(account), "latest"]))
        return code[len(_DELEGATION) :] if code.startswith(_DELEGATION) else None

    async def nonce(self, account: bytes) -> int:
        """How many transactions of the account are on the chain."""
        return _number(await self.network.pool.request_as(str, "eth_getTransactionCount", [to_data(account), "latest"]))

    async def balance(self, account: bytes) -> int:
        """What the account has, in wei."""
        return _number(await self.network.pool.request_as(str, "eth_getBalance", [to_data(account), "latest"]))

    async def receipt(self, transaction: bytes) -> Receipt | None:
        """Where a transaction is on the chain; None while it is not."""
        found = await self._request(_Receipt, "eth_getTransactionReceipt", [to_data(transaction)])
        if found is None:
            return None
        return Receipt(_number(found.block_number), parse_data(found.block_hash), _number(found.status) == 1)

    async def _request(self, kind: type[T], method: str, params: Sequence[object]) -> T | None:
        """The result of a read, which may be null."""
        found = await self.network.pool.request(method, params)
        try:
            return None if found is None else msgspec.convert(found, kind)
        except msgspec.ValidationError:
            raise UpstreamError(f"a node of {self.network.name} answered {method} with something else") from None

    async def send(self, raw: bytes) -> None:
        """Give a signed transaction to the nodes. One that they have already is a success. Raises `NodeError`."""
        params = msgspec.json.encode([to_data(raw)])
        await self.network.pool.call("eth_sendRawTransaction", params, repeat=Repeat.ELSEWHERE)


def _number(text: str) -> int:
    return parse_quantity(text, lenient=True)
