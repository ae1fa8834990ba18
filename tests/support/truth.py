"""Contracts of every standard with random traffic, and what they themselves say of balances and owners.

For tests that hold the answers of the data services against the contracts. The contracts are fresh, so that all who
hold something are known.
"""

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import vyper

from capstan.chain.calls.models import ContractCall
from capstan.chain.calls.multicall import decode_aggregate, encode_aggregate
from capstan.core.hexes import parse_address
from capstan.devnet.artifacts import load_contract
from tests.support.devnet import EvmDevnet
from tests.support.index_node import GAS, call_data

RANGES = Path(__file__).parents[1] / "contracts" / "mocks" / "Consecutive721.vy"
IDS_721 = tuple(range(1, 13))
IDS_RANGES = tuple(range(100, 140))
IDS_1155 = (5, 6, 7, 2**256 - 1)
FEE = hex(20 * 10**9)

Operation = tuple[str, str, str]


class Contracts(msgspec.Struct, frozen=True):
    """The addresses of one contract of each kind, and of those who use them."""

    token: str
    unique: str
    ranges: str
    items: str
    people: tuple[str, ...]

    @classmethod
    async def deploy(cls, devnet: EvmDevnet, first_account: int, people: int = 5) -> "Contracts":
        """Fresh contracts; the accounts from `first_account` on use them."""
        accounts = [account.address for account in devnet.deployment.accounts[first_account : first_account + people]]
        ranges = vyper.compile_code(RANGES.read_text(), output_formats=["bytecode"])["bytecode"]
        codes = [
            "0x" + load_contract("SampleERC20").init_code(["string", "string", "uint8"], ["Truth", "T", 6]).hex(),
            "0x" + load_contract("SampleERC721").init_code(["string", "string"], ["Unique", "U"]).hex(),
            ranges,
            "0x" + load_contract("SampleERC1155").init_code(["string", "string"], ["Items", "I"]).hex(),
        ]
        sent = []
        for code in codes:
            request = {"from": accounts[0], "data": code, "gas": hex(4_000_000), "gasPrice": FEE}
            sent.append(await devnet.call_async("eth_sendTransaction", request))
        await devnet.mine_async()
        receipts = [await devnet.call_async("eth_getTransactionReceipt", each) for each in sent]
        assert all(receipt["status"] == "0x1" for receipt in receipts)
        token, unique, ranged, items = (receipt["contractAddress"] for receipt in receipts)
        return cls(token, unique, ranged, items, tuple(accounts))


class Truth(msgspec.Struct, frozen=True):
    """What the contracts say at the head: what is above zero, by holder in lower case."""

    tokens: dict[str, int]
    # By contract and id.
    owners: dict[tuple[str, int], str]
    items: dict[tuple[int, str], int]
    balances: dict[tuple[str, str], int]

    @classmethod
    async def read(cls, devnet: EvmDevnet, contracts: Contracts) -> "Truth":
        """Everything at one block."""
        people = [person.lower() for person in contracts.people]
        unique = [(contracts.unique, number) for number in IDS_721]
        unique += [(contracts.ranges, number) for number in IDS_RANGES]
        items = [(number, person) for number in IDS_1155 for person in people]
        balances = [(each, person) for each in (contracts.unique, contracts.ranges) for person in people]
        asked = [
            *((contracts.token, call_data("balanceOf(address)", person)) for person in people),
            *((each, call_data("ownerOf(uint256)", number)) for each, number in unique),
            *((contracts.items, call_data("balanceOf(address,uint256)", who, number)) for number, who in items),
            *((each, call_data("balanceOf(address)", person)) for each, person in balances),
        ]
        calls = [ContractCall(parse_address(to), bytes.fromhex(data[2:])) for to, data in asked]
        request = {"to": devnet.deployment.multicall3, "data": "0x" + encode_aggregate(calls).hex()}
        answer = await devnet.call_async("eth_call", request, "latest")
        results = iter(decode_aggregate(bytes.fromhex(answer[2:]), len(calls)))

        def numbers(keys: list[Any]) -> dict[Any, int]:
            read = {key: int.from_bytes(next(results) or b"") for key in keys}
            return {key: number for key, number in read.items() if number}

        tokens = numbers(people)
        owners = {key: f"0x{number:040x}" for key, number in numbers(unique).items()}
        return cls(tokens, owners, numbers(items), numbers(balances))


class Traffic:
    """Random mints, transfers, burns, batches and ranges. Some fail, as in life."""

    def __init__(self, devnet: EvmDevnet, contracts: Contracts) -> None:
        self._devnet = devnet
        self._contracts = contracts
        self._owners: dict[tuple[str, int], str] = {}
        self.steps = 0

    async def send(self, random: Random, steps: int) -> None:
        """Send so many transactions, and mine them into a block."""
        for _ in range(steps):
            sender, to, data = self._operation(random)
            request = {"from": sender, "to": to, "data": data, "gas": GAS, "gasPrice": FEE}
            await self._devnet.call_async("eth_sendTransaction", request)
        self.steps += steps
        await self._devnet.mine_async()
        self._owners = (await Truth.read(self._devnet, self._contracts)).owners

    def _operation(self, random: Random) -> Operation:
        kinds = (self._token, self._unique, self._unique, self._ranges, self._ranges, self._items, self._items)
        one, other = (random.choice(self._contracts.people) for _ in range(2))
        return random.choice(kinds)(random, one, other)

    def _token(self, random: Random, one: str, other: str) -> Operation:
        amount = random.randrange(5)
        datas = (
            call_data("mint(address,uint256)", other, amount),
            call_data("transfer(address,uint256)", other, amount),
            call_data("burn(uint256)", amount),
        )
        return one, self._contracts.token, random.choice(datas)

    def _unique(self, random: Random, one: str, other: str) -> Operation:
        token_id = random.choice(IDS_721)
        owner = self._owners.get((self._contracts.unique, token_id))
        if owner is None:
            return one, self._contracts.unique, call_data("mint(address,uint256)", other, token_id)
        datas = (
            call_data("transferFrom(address,address,uint256)", owner, other, token_id),
            call_data("transferFrom(address,address,uint256)", owner, other, token_id),
            call_data("burn(uint256)", token_id),
        )
        return owner, self._contracts.unique, random.choice(datas)

    def _ranges(self, random: Random, one: str, other: str) -> Operation:
        contract, first = self._contracts.ranges, random.choice(IDS_RANGES)
        owner, last = self._owners.get((contract, first)), first
        while random.random() < 0.9 and last < IDS_RANGES[-1] and self._owners.get((contract, last + 1)) == owner:
            last += 1
        if owner is None:
            return one, contract, call_data("mintRange(address,uint256,uint256)", other, first, last)
        datas = (
            call_data("transferRange(address,uint256,uint256)", other, first, last),
            call_data("transferFrom(address,address,uint256)", owner, other, first),
            call_data("burn(uint256)", first),
        )
        return owner, contract, random.choice(datas)

    def _items(self, random: Random, one: str, other: str) -> Operation:
        token_id, amount = random.choice(IDS_1155), random.randrange(4)
        ids = [random.choice(IDS_1155) for _ in range(random.randrange(4))]
        batch = "safeBatchTransferFrom(address,address,uint256[],uint256[],bytes)"
        datas = (
            call_data("mint(address,uint256,uint256)", other, token_id, random.choice([0, 1, 7, 10**30])),
            call_data("safeTransferFrom(address,address,uint256,uint256,bytes)", one, other, token_id, amount, b""),
            call_data(batch, one, other, ids, [random.randrange(3) for _ in ids], b""),
            call_data("burn(address,uint256,uint256)", one, token_id, amount),
        )
        return one, self._contracts.items, random.choice(datas)
