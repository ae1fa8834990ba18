"""How fast the transfer index fetches history, against a plain loop over eth_getLogs that does the same storing.

A development chain is filled with Transfer and Approval events of one token. The baseline asks for a fixed number of
blocks at a time, decodes the answer with the JSON and ABI libraries, and writes the rows, one window after the other:
what one writes in an afternoon. Each contender runs in a process of its own, so that its peak memory is its own. The
last figures show whether an event costs the same in a large index as in a small one. Run it with `make bench`, or
alone: `python bench/data.py [--blocks N] [--events N] [--rows N] [--rounds N] [--ponder DIRECTORY]`. With `--ponder`,
Ponder does the same in the same run: copy `bench/peers/ponder` to the directory and run `npm install` there first. All
contenders take turns, so that what else the machine does falls on all of them; the middle one of the ratios counts.
"""

import argparse
import asyncio
import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import vyper
from eth_abi.abi import decode, encode
from prometheus_client import Counter

from capstan.chain.models import NetworkSpec, UpstreamSpec
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from capstan.core.hexes import keccak256
from capstan.devnet.evm import EvmNode
from capstan.devnet.install import ensure_node_project
from capstan.devnet.rpc import NodeRpc
from capstan.index.events import TRANSFER
from capstan.index.history import HistoryReader
from capstan.index.job import HistoryJob, JobOptions, JobTools, Source
from capstan.index.metrics import IndexMetrics
from capstan.index.models import EVERYTHING, Position, Standard, Transfer
from capstan.index.ranges import RangeLimit
from capstan.index.subjects import Subjects
from capstan.index.writer import TransferWriter
from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from capstan.storage.migrate import upgrade

NETWORK = "ethereum/devnet"
HOLDERS = 5_000
# What is written in one transaction, the rows of a small index, and how often its cost is compared with a large one.
BATCH, SMALL, PROBES = 20_000, 20_000, 2
# What a careful author of a plain loop would choose: providers refuse more.
WINDOW = 100
CONTRACT = f"""
# pragma version 0.4.3
event Transfer:
    sender: indexed(address)
    receiver: indexed(address)
    amount: uint256

event Approval:
    owner: indexed(address)
    spender: indexed(address)
    amount: uint256

@external
def emit(start: uint256, pairs: uint256):
    for place: uint256 in range(pairs, bound=1000):
        number: uint256 = start + place
        one: address = convert(number % {HOLDERS} + 1, address)
        other: address = convert(number * 7 % {HOLDERS} + 1, address)
        log Transfer(sender=one, receiver=other, amount=number)
        log Approval(owner=one, spender=other, amount=number)
"""


async def fill(url: str, blocks: int, events: int) -> str:
    """Emit so many events over so many blocks, half of them transfers. Returns the contract."""
    code = vyper.compile_code(CONTRACT, output_formats=["bytecode"])["bytecode"]
    pairs = events // 2 // blocks
    selector = keccak256(b"emit(uint256,uint256)")[:4]
    async with NodeRpc(url) as rpc:
        sender = (await rpc.call("eth_accounts"))[0]
        fee = {"gasPrice": hex(20 * 10**9)}
        sent = await rpc.call("eth_sendTransaction", {"from": sender, "data": code, "gas": hex(3_000_000), **fee})
        await rpc.call("evm_mine")
        contract: str = (await rpc.call("eth_getTransactionReceipt", sent))["contractAddress"]
        for number in range(blocks):
            data = "0x" + (selector + encode(["uint256", "uint256"], [number * pairs, pairs])).hex()
            request = {"from": sender, "to": contract, "data": data, "gas": hex(100_000 + 6_000 * pairs), **fee}
            sent = await rpc.call("eth_sendTransaction", request)
            await rpc.call("evm_mine")
        receipt = await rpc.call("eth_getTransactionReceipt", sent)
        if receipt["status"] != "0x1" or len(receipt["logs"]) != 2 * pairs:
            raise RuntimeError("the events were not emitted")
        return contract


# --- the contenders, each in a process of its own


class Watch:
    """Measures from when it is made, so that preparing the database does not count."""

    def __init__(self) -> None:
        self._began, self._busy = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        return {"seconds": time.perf_counter() - self._began, "busy": time.process_time() - self._busy}


async def plain(url: str, file: Path) -> dict[str, float]:
    """The baseline."""
    database = sqlite3.connect(file)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    columns = (
        "block INTEGER, position INTEGER, contract BLOB, sender BLOB, receiver BLOB, amount TEXT, hash BLOB, tx BLOB"
    )
    database.execute(f"CREATE TABLE transfers ({columns}, PRIMARY KEY (block, position)) WITHOUT ROWID")
    for party in ("sender", "receiver"):
        database.execute(f"CREATE INDEX by_{party} ON transfers ({party}, block, position)")
    calls = events = 0
    watch = Watch()
    async with aiohttp.ClientSession() as session:

        async def ask(method: str, params: list[Any]) -> Any:
            nonlocal calls
            calls += 1
            body = {"jsonrpc": "2.0", "id": calls, "method": method, "params": params}
            async with session.post(url, json=body) as response:
                return json.loads(await response.read())["result"]

        head = int(await ask("eth_blockNumber", []), 16)
        for first in range(0, head + 1, WINDOW):
            last = min(head, first + WINDOW - 1)
            query = {"fromBlock": hex(first), "toBlock": hex(last), "topics": [[TRANSFER]]}
            for log in await ask("eth_getLogs", [query]):
                sender, receiver = (bytes.fromhex(topic[26:]) for topic in log["topics"][1:3])
                (amount,) = decode(["uint256"], bytes.fromhex(log["data"][2:]))
                database.execute(
                    "INSERT INTO transfers VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        int(log["blockNumber"], 16),
                        int(log["logIndex"], 16),
                        bytes.fromhex(log["address"][2:]),
                        sender,
                        receiver,
                        str(amount),
                        bytes.fromhex(log["blockHash"][2:]),
                        bytes.fromhex(log["transactionHash"][2:]),
                    ),
                )
                events += 1
            database.commit()
    return {"events": events, "calls": calls, **watch.read()}


def _registry(url: str) -> ChainRegistry:
    registry = ChainRegistry(open_session(), SystemClock())
    chain, network = NETWORK.split("/")
    registry.replace(
        [
            NetworkSpec(
                chain=chain,
                network=network,
                family="evm",
                upstreams=(UpstreamSpec(name="node", url=url, gzip=False, timeout_seconds=60.0),),
                block_time_ms=1000,
                finality_depth=64,
                deadline_seconds=60.0,
                eip1559=True,
            )
        ]
    )
    return registry


async def index(url: str, file: Path) -> dict[str, float]:
    """Ours: everything of the chain, in full: transfers, sums and coverage."""
    database = Database(DatabaseOptions(url=sqlite_url(file)))
    await upgrade(database)
    clock, metrics, registry = SystemClock(), IndexMetrics(), _registry(url)
    subjects, writer = Subjects(clock, sqlite_dialect=True), TransferWriter(sqlite=True)
    async with NodeRpc(url) as rpc:
        head = await rpc.call("eth_getBlockByNumber", "latest", False)
    number = int(head["number"], 16)
    async with database.write() as connection:
        network = await subjects.lock(connection, NETWORK)
        await subjects.advance(connection, network.id, Position(number, bytes.fromhex(head["hash"][2:])))
        network = await subjects.lock(connection, NETWORK)
        state = await subjects.register(connection, network, EVERYTHING, 0)
    pool = registry.get(*NETWORK.split("/")).pool
    source = Source(HistoryReader(NETWORK, lambda: pool, metrics), RangeLimit(clock), lambda: number)
    tools = JobTools(database, subjects, writer, metrics, clock, "bench", JobOptions())
    watch = Watch()
    if not await HistoryJob(tools, source, state).run():
        raise RuntimeError("the history was not fetched")
    times = watch.read()
    await registry.close()
    await database.close()
    return {"events": _total(metrics.transfers), "calls": _total(metrics.calls), **times}


def _total(counter: Counter) -> float:
    return sum(
        sample.value for metric in counter.collect() for sample in metric.samples if sample.name.endswith("_total")
    )


class Store:
    """An index that is filled with made-up transfers, and measures itself. Close it."""

    def __init__(self, file: Path) -> None:
        self.rows = 0
        self.spent = 0.0
        self.database = Database(DatabaseOptions(url=sqlite_url(file)))
        self._writer = TransferWriter(sqlite=True)

    async def open(self) -> None:
        await upgrade(self.database)

    async def add(self) -> None:
        """Write the next batch, as many as the backfill writes at a time, and count what it costs."""
        some = [_transfer(number) for number in range(self.rows, self.rows + BATCH)]
        began = time.process_time()
        async with self.database.write() as connection:
            await self._writer.add(connection, 1, some)
        self.spent += time.process_time() - began
        self.rows += BATCH


async def growth(rows: int) -> None:
    """Print what an event costs as the index grows, beside what it costs in a small index at the same moment."""
    with tempfile.TemporaryDirectory() as directory:
        large = Store(Path(directory) / "large.db")
        await large.open()
        for mark in (mark for mark in (30_000, 100_000, 300_000, 1_000_000) if mark <= rows):
            while large.rows < mark:
                await large.add()
            small = Store(Path(directory) / f"small-{mark}.db")
            await small.open()
            while small.rows < SMALL:
                await small.add()
            large.spent = small.spent = 0.0
            for _ in range(PROBES):
                await large.add()
                await small.add()
            costs = [store.spent / PROBES / BATCH * 1e6 for store in (large, small)]
            print(
                f"  at {mark:>9,} rows: {costs[0]:6.1f} us CPU per event, {costs[0] / costs[1]:4.2f} x "
                f"that at {SMALL:,} ({costs[1]:.1f})"
            )
            await small.database.close()
        await large.database.close()


def _transfer(number: int) -> Transfer:
    """Every third is an NFT."""
    one, other = ((number * factor % HOLDERS + 1).to_bytes(20) for factor in (1, 7))
    nft = number % 3 == 0
    block = number // 100
    return Transfer(
        block,
        number % 100,
        0,
        Standard.ERC721 if nft else Standard.ERC20,
        (1_000 + number % 40).to_bytes(20),
        number % 10_000 if nft else None,
        one,
        other,
        1 if nft else number,
        keccak256(block.to_bytes(32)),
        keccak256(number.to_bytes(32)),
        1_700_000_000 + block,
    )


CONTENDERS = {"plain": plain, "index": index}


def contend(name: str, url: str) -> None:
    """The inside of a contender's process."""
    with tempfile.TemporaryDirectory() as directory:
        result = asyncio.run(CONTENDERS[name](url, Path(directory) / "bench.db"))
    result["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result))


def measure(name: str, url: str) -> dict[str, float]:
    """Run one contender and print its figures."""
    done = subprocess.run(
        [sys.executable, __file__, "--contender", name, "--url", url], capture_output=True, text=True, check=True
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(
        f"  {name:6} {result['events'] / result['seconds']:9,.0f} events/s, "
        f"{result['events'] / result['busy']:9,.0f} per second of CPU, {result['calls']:5,.0f} calls, "
        f"{result['megabytes']:5.0f} MB at most, {result['seconds']:6.2f} s"
    )
    return result


def measure_ponder(project: Path, url: str, contract: str, last_block: int) -> dict[str, float]:
    """Run Ponder and print its figures."""
    arguments = ["-m", "bench.peers.run_ponder", str(project.absolute()), url, contract, str(last_block)]
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, *arguments], cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    peer: dict[str, float] = json.loads(done.stdout)
    print(
        f"  Ponder {peer['events'] / peer['seconds']:9,.0f} events/s, "
        f"{peer['events'] / peer['busy']:9,.0f} per second of CPU, {peer['calls']:5,.0f} calls, "
        f"{peer['megabytes']:5.0f} MB at most, {peer['seconds']:6.2f} s"
    )
    return peer


async def compare(blocks: int, events: int, rounds: int, ponder: Path | None) -> None:
    """Fill a chain and let all fetch it, in turns."""
    node = EvmNode(ensure_node_project(print), block_time=3600)
    await node.start()
    try:
        began = time.perf_counter()
        contract = await fill(node.url, blocks, events)
        print(f"{events:,} events in {blocks:,} blocks, made in {time.perf_counter() - began:.0f} s")
        async with NodeRpc(node.url) as rpc:
            last = int(await rpc.call("eth_blockNumber"), 16)
        against_plain, against_ponder, busy = [], [], []
        for _ in range(rounds):
            baseline, ours = [measure(name, node.url) for name in CONTENDERS]
            if baseline["events"] != ours["events"]:
                raise RuntimeError(f"{baseline['events']} and {ours['events']} transfers were found")
            against_plain.append(ours["seconds"] / baseline["seconds"])
            if ponder is not None:
                peer = measure_ponder(ponder, node.url, contract, last)
                against_ponder.append(peer["seconds"] / ours["seconds"])
                busy.append(peer["busy"] / ours["busy"])
        print(f"  the index takes {median(against_plain):.2f} x the time of the plain loop{_all(against_plain)}")
        if against_ponder:
            print(f"  the index is {median(against_ponder):.1f} times as fast as Ponder{_all(against_ponder)}")
            print(f"  Ponder uses {median(busy):.1f} times the processor time of the index{_all(busy)}")
    finally:
        await node.stop()


def _all(ratios: list[float]) -> str:
    """The ratios of all rounds, if there are several."""
    return f" ({', '.join(f'{ratio:.2f}' for ratio in ratios)})" if len(ratios) > 1 else ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=2_000)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ponder", type=Path)
    parser.add_argument("--contender", choices=sorted(CONTENDERS))
    parser.add_argument("--url")
    chosen = parser.parse_args()
    if chosen.contender:
        contend(chosen.contender, chosen.url)
        return
    asyncio.run(compare(chosen.blocks, chosen.events, chosen.rounds, chosen.ponder))
    print("cost of one event while the index grows")
    asyncio.run(growth(chosen.rows))


if __name__ == "__main__":
    main()
