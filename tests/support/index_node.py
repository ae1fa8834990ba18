"""The transfer index on a real development chain: random token traffic, a stream that follows it, and the truth.

The stream is a small one of its own, so that a test decides when it moves: `ChainFeed.sync` walks from where the index
stands to the node's head, block by block, reverts first, exactly as the real one would.
"""

from random import Random
from typing import Any

import msgspec
from eth_abi.abi import encode

from capstan.chain.calls.models import ContractCall
from capstan.chain.calls.multicall import decode_aggregate, encode_aggregate
from capstan.chain.follower.models import Applied, Block, Log, Reverted
from capstan.chain.models import NetworkSpec, UpstreamSpec
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from capstan.core.hexes import keccak256
from capstan.index.history import HistoryReader
from capstan.index.job import JobOptions, JobTools, Source
from capstan.index.ranges import RangeLimit
from tests.support.devnet import EvmDevnet
from tests.support.index_chain import NETWORK, Parts, bare

GAS = hex(500_000)


def call_data(signature: str, *values: object) -> str:
    """The input of a contract call."""
    kinds = signature[signature.index("(") + 1 : -1]
    return "0x" + (keccak256(signature.encode())[:4] + encode(kinds.split(",") if kinds else [], values)).hex()


def registry_for(url: str) -> ChainRegistry:
    """The upstreams of the network: this one node."""
    registry = ChainRegistry(open_session(), SystemClock())
    chain, network = NETWORK.split("/")
    spec = NetworkSpec(
        chain=chain,
        network=network,
        family="evm",
        upstreams=(UpstreamSpec(name="node", url=url),),
        block_time_ms=1000,
        finality_depth=64,
        deadline_seconds=20.0,
        eip1559=True,
    )
    registry.replace([spec])
    return registry


def source_for(registry: ChainRegistry, parts: Parts, settled: int | None) -> Source:
    """Where history comes from; `settled` is the last final block."""
    pool = registry.get(*NETWORK.split("/")).pool
    reader = HistoryReader(NETWORK, lambda: pool, parts.metrics)
    return Source(reader, RangeLimit(parts.clock), lambda: settled)


def tools_for(parts: Parts, process: str = "process-1", **options: Any) -> JobTools:
    return JobTools(
        parts.database, parts.subjects, parts.writer, parts.metrics, parts.clock, process, JobOptions(**options)
    )


class ChainFeed:
    """Feeds one index from a node, when told to."""

    def __init__(self, devnet: EvmDevnet, parts: Parts, start: int) -> None:
        self._devnet = devnet
        self._parts = parts
        self._start = start

    async def sync(self, most: int = 1_000_000) -> None:
        """Take at most so many steps towards the head."""
        chain = self._parts.chain
        for _ in range(most):
            number = chain[-1].number + 1 if chain else self._start
            if chain:
                header = await self._devnet.call_async("eth_getBlockByNumber", hex(chain[-1].number), False)
                if header is None or header["hash"] != chain[-1].hash:
                    await self._parts.feed(Reverted(bare(chain.pop())))
                    continue
            block = await self._block(number)
            if block is None:
                return
            if chain and block.parent_hash != chain[-1].hash:
                # The node has moved between the two questions.
                continue
            chain.append(block)
            await self._parts.feed(Applied(block))

    async def _block(self, number: int) -> Block | None:
        header = await self._devnet.call_async("eth_getBlockByNumber", hex(number), False)
        if header is None:
            return None
        logs = await self._devnet.call_async("eth_getLogs", {"blockHash": header["hash"]})
        return Block(
            number,
            header["hash"],
            header["parentHash"],
            int(header["timestamp"], 16),
            b"{}",
            None,
            None,
            tuple(
                Log(
                    log["address"].lower(),
                    tuple(log["topics"]),
                    int(log["logIndex"], 16),
                    log["transactionHash"],
                    msgspec.json.encode(log),
                )
                for log in logs
            ),
        )


class Traffic:
    """Random mints, transfers, burns and batches of the sample contracts. Some fail, as in life."""

    def __init__(self, devnet: EvmDevnet, random: Random, *, people: int = 5) -> None:
        self._devnet = devnet
        self._random = random
        deployment = devnet.deployment
        self.people = [account.address for account in deployment.accounts[:people]]
        self.token = deployment.tokens[0].address
        self.erc721, self.erc1155 = (each.address for each in deployment.nfts)
        self.ids721 = list(range(10_000, 10_012))
        self.ids1155 = [*range(500, 504), 2**256 - 1]
        self.steps = 0
        self._owners: dict[int, str] = {}

    async def send(self, steps: int) -> None:
        """Send so many transactions, and mine them into a block."""
        for _ in range(steps):
            sender, to, data = self._operation()
            await self._devnet.call_async(
                "eth_sendTransaction", {"from": sender, "to": to, "data": data, "gas": GAS, "gasPrice": hex(20 * 10**9)}
            )
        self.steps += steps
        await self._devnet.mine_async()
        known = {person.lower(): person for person in self.people}
        truth = await Truth.read(self._devnet, self)
        self._owners = {token_id: known["0x" + owner.hex()] for token_id, owner in truth.erc721.items()}

    def _operation(self) -> tuple[str, str, str]:
        choose = self._random.choice
        one, other = choose(self.people), choose(self.people)
        match self._random.randrange(10):
            case 0:
                return one, self.erc721, call_data("mint(address,uint256)", other, choose(self.ids721))
            case 1 | 2:
                token_id = choose(self.ids721)
                owner = self._owner(token_id)
                return owner, self.erc721, call_data("transferFrom(address,address,uint256)", owner, other, token_id)
            case 3:
                token_id = choose(self.ids721)
                return self._owner(token_id), self.erc721, call_data("burn(uint256)", token_id)
            case 4:
                amount = choose([0, 1, 7, 10**30])
                data = call_data("mint(address,uint256,uint256)", other, choose(self.ids1155), amount)
                return one, self.erc1155, data
            case 5:
                kinds = "safeTransferFrom(address,address,uint256,uint256,bytes)"
                amount = self._random.randrange(4)
                return one, self.erc1155, call_data(kinds, one, other, choose(self.ids1155), amount, b"")
            case 6 | 7:
                kinds = "safeBatchTransferFrom(address,address,uint256[],uint256[],bytes)"
                count = self._random.randrange(4)
                ids = [choose(self.ids1155) for _ in range(count)]
                amounts = [self._random.randrange(3) for _ in range(count)]
                return one, self.erc1155, call_data(kinds, one, other, ids, amounts, b"")
            case 8:
                data = call_data("burn(address,uint256,uint256)", one, choose(self.ids1155), self._random.randrange(3))
                return one, self.erc1155, data
            case _:
                return one, self.token, call_data("mint(address,uint256)", other, self._random.randrange(5))

    def _owner(self, token_id: int) -> str:
        """Whoever had it at the last block; somebody, when nobody had."""
        return self._owners.get(token_id) or self._random.choice(self.people)


class Truth(msgspec.Struct, frozen=True):
    """What the contracts themselves say at the head: amounts above zero only."""

    erc721: dict[int, bytes]
    erc1155: dict[tuple[int, bytes], int]
    balances721: dict[bytes, int]

    @classmethod
    async def read(cls, devnet: EvmDevnet, traffic: "Traffic") -> "Truth":
        people = [bytes.fromhex(person[2:]) for person in traffic.people]
        pairs = [(token_id, person) for token_id in traffic.ids1155 for person in people]
        erc721, erc1155 = traffic.erc721, traffic.erc1155
        asked = [
            *((erc721, call_data("ownerOf(uint256)", token_id)) for token_id in traffic.ids721),
            *((erc1155, call_data("balanceOf(address,uint256)", person, token_id)) for token_id, person in pairs),
            *((erc721, call_data("balanceOf(address)", person)) for person in people),
        ]
        calls = [ContractCall(bytes.fromhex(to[2:]), bytes.fromhex(data[2:])) for to, data in asked]
        request = {"to": devnet.deployment.multicall3, "data": "0x" + encode_aggregate(calls).hex()}
        answer = await devnet.call_async("eth_call", request, "latest")
        results = decode_aggregate(bytes.fromhex(answer[2:]), len(calls))
        owners, rest = results[: len(traffic.ids721)], results[len(traffic.ids721) :]
        amounts = [int.from_bytes(result or b"") for result in rest]
        return cls(
            {token_id: owner[-20:] for token_id, owner in zip(traffic.ids721, owners, strict=True) if owner},
            {pair: amount for pair, amount in zip(pairs, amounts, strict=False) if amount},
            dict(zip(people, amounts[len(pairs) :], strict=True)),
        )
