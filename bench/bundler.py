"""How fast the bundler takes operations and gets them into blocks, beside alto, on the same node in the same run.

Each contender gets the same operations, every one of which creates an account, from several senders at once, on a fresh
development chain of its own that makes a block every second. Told are the time until an operation is accepted, the
operations included per second from the first that was sent to the last that was included, the processor time of the
bundler for each, and, in a run of its own, the calls it makes to its node, and what its estimates cost. Run it with
`make bench`, or alone: `python bench/bundler.py [--counts 100 1000] [--senders 8] [--entry-point 0.7] [--only NAME]`.
Both contenders only simulate operations, because alto cannot do more on this chain; with `--full`, ours is measured
alone, and validates them by ERC-7562.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import msgspec
from aiohttp import web
from eth_account import Account
from eth_account.messages import encode_defunct

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.peers.bundlers import Bundler, alto, capstan  # noqa: E402 - found by the line above when run as a script
from bench.peers.others import free_port  # noqa: E402
from bench.rpc import processor_seconds  # noqa: E402
from capstan.core.hexes import to_data  # noqa: E402
from capstan.devnet.deploy import deploy_all  # noqa: E402
from capstan.devnet.evm import CHAIN_ID, EvmNode  # noqa: E402
from capstan.devnet.install import ensure_node_project  # noqa: E402
from capstan.devnet.models import Deployment  # noqa: E402
from capstan.devnet.rpc import NodeRpc  # noqa: E402
from capstan.userops.abi import address_word, dynamic, members, word  # noqa: E402
from capstan.userops.codec import codec_for  # noqa: E402
from capstan.userops.events import OPERATION_HANDLED_TOPIC  # noqa: E402
from capstan.userops.models import UserOperation  # noqa: E402
from capstan.userops.versions import Version  # noqa: E402

GWEI = 10**9
OWNER = Account.from_key(b"\x43" * 32)
# Of the run that counts calls.
COUNTED = 100
ESTIMATED = 10
LIMITS = ("preVerificationGas", "verificationGasLimit", "callGasLimit")
POLL_SECONDS = 0.1
MOST_SECONDS = 600.0


class Start(Protocol):
    """Starts a contender on a node."""

    def __call__(
        self, node_url: str, deployment: Deployment, version: str
    ) -> AbstractContextManager[Bundler | None]: ...


CONTENDERS: dict[str, Start] = {"capstan": capstan, "alto": alto, "capstan-full": partial(capstan, full=True)}


class Figures(msgspec.Struct, frozen=True):
    """What one contender did with one load. Seconds, but for the rate."""

    accepted: list[float]
    rate: float
    processor: float

    def percentile(self, part: int) -> float:
        return statistics.quantiles(self.accepted, n=100)[part - 1]


class Estimates(msgspec.Struct, frozen=True):
    """What estimates of one contender cost, and how far they are above what was used."""

    seconds: float
    calls: float
    ratio: float


@asynccontextmanager
async def chain() -> AsyncIterator[tuple[NodeRpc, str, Deployment]]:
    """A fresh development chain."""
    project = ensure_node_project(print)
    node = EvmNode(project)
    await node.start()
    try:
        deployment = await deploy_all(node.url, lambda _line: None, project=project)
        async with NodeRpc(node.url) as rpc:
            yield rpc, node.url, deployment
    finally:
        await node.stop()


async def operations(
    rpc: NodeRpc, deployment: Deployment, version: Version, count: int
) -> list[tuple[dict[str, Any], bytes]]:
    """So many operations, each the first of an account with money: as they are sent, and their hashes."""
    entry_point = bytes.fromhex(deployment.entry_points[version][2:])
    made = [await unsigned(rpc, deployment, version, salt) for salt in range(count)]
    return [signed(operation, version, entry_point) for operation in made]


async def unsigned(rpc: NodeRpc, deployment: Deployment, version: Version, salt: int) -> UserOperation:
    """An operation that creates an account of our owner, which gets money."""
    factory = bytes.fromhex(deployment.factories[version][2:])
    owner = address_word(bytes.fromhex(OWNER.address[2:]))
    question = {"to": to_data(factory), "data": to_data(bytes.fromhex("8cb84e18") + owner + word(salt))}
    sender = bytes.fromhex((await rpc.call("eth_call", question, "latest"))[-40:])
    await rpc.call("hardhat_setBalance", to_data(sender), hex(10**18))
    return UserOperation(
        sender=sender,
        nonce=0,
        factory=factory,
        factory_data=bytes.fromhex("5fbfb9cf") + owner + word(salt),
        call_gas_limit=20_000,
        verification_gas_limit=400_000 if version == "0.6" else 300_000,
        pre_verification_gas=100_000,
        max_fee_per_gas=40 * GWEI,
        max_priority_fee_per_gas=2 * GWEI,
    )


def signed(operation: UserOperation, version: Version, entry_point: bytes) -> tuple[dict[str, Any], bytes]:
    """The operation as it is sent, and its hash."""
    codec = codec_for(version)
    hashed = codec.hash(operation, entry_point, CHAIN_ID)
    if codec.release.typed_hash:
        signature = Account.unsafe_sign_hash(hashed, OWNER.key).signature
    else:
        signature = OWNER.sign_message(encode_defunct(hashed)).signature
    return codec.render(msgspec.structs.replace(operation, signature=bytes(signature))), hashed


async def load(
    bundler: Bundler, node_url: str, entry_point: str, wanted: Sequence[tuple[dict[str, Any], bytes]], senders: int
) -> Figures:
    """Send all of them, and wait until all are included."""
    waiting, accepted = list(reversed(wanted)), []
    timeout = aiohttp.ClientTimeout(total=120)
    async with NodeRpc(node_url) as rpc, aiohttp.ClientSession(headers=bundler.headers, timeout=timeout) as session:
        first_block = int(await rpc.call("eth_blockNumber"), 16) + 1

        async def send() -> None:
            while waiting:
                operation, _ = waiting.pop()
                body = {"jsonrpc": "2.0", "id": 1, "method": "eth_sendUserOperation"}
                began = time.perf_counter()
                async with session.post(bundler.url, json={**body, "params": [operation, entry_point]}) as answer:
                    reply = await answer.json()
                accepted.append(time.perf_counter() - began)
                if "result" not in reply:
                    raise RuntimeError(f"{bundler.name} refused an operation: {reply}")

        before = processor_seconds(bundler.pid) or 0.0
        began = time.perf_counter()
        hashes = {hashed for _, hashed in wanted}
        async with asyncio.timeout(MOST_SECONDS):
            async with asyncio.TaskGroup() as group:
                inclusion = group.create_task(included(rpc, entry_point, first_block, hashes))
                for _ in range(senders):
                    group.create_task(send())
    after = processor_seconds(bundler.pid) or 0.0
    return Figures(accepted, len(wanted) / (inclusion.result() - began), (after - before) / len(wanted))


async def included(rpc: NodeRpc, entry_point: str, block: int, missing: set[bytes]) -> float:
    """When the last of these operations was seen in a block."""
    while missing:
        latest = int(await rpc.call("eth_blockNumber"), 16)
        if latest < block:
            await asyncio.sleep(POLL_SECONDS)
            continue
        question = {
            "address": entry_point,
            "topics": [to_data(OPERATION_HANDLED_TOPIC)],
            "fromBlock": hex(block),
            "toBlock": hex(latest),
        }
        for log in await rpc.call("eth_getLogs", question):
            missing.discard(bytes.fromhex(log["topics"][1][2:]))
        block = latest + 1
    return time.perf_counter()


async def estimated(
    bundler: Bundler, node_url: str, deployment: Deployment, version: Version, counted: Counter[str]
) -> Estimates:
    """Estimate a few operations that create an account and call a token, send them so, and see what they used."""
    entry_point = deployment.entry_points[version]
    token = bytes.fromhex(deployment.tokens[0].address[2:])
    mint = bytes.fromhex("40c10f19") + address_word(bytes.fromhex(OWNER.address[2:])) + word(1)
    call = bytes.fromhex("b61d27f6") + members([address_word(token), word(0), dynamic(mint)])
    seconds, limits, used, calls = [], 0, 0, 0
    async with NodeRpc(node_url) as rpc, aiohttp.ClientSession(headers=bundler.headers) as session:

        async def ask(method: str, *params: object) -> Any:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            async with session.post(bundler.url, json=body) as answer:
                reply = await answer.json()
            if "result" not in reply:
                raise RuntimeError(f"{bundler.name} refused {method}: {reply}")
            return reply["result"]

        for salt in range(ESTIMATED):
            operation = await unsigned(rpc, deployment, version, 10**6 + salt)
            operation = msgspec.structs.replace(operation, call_data=call)
            dummy, _ = signed(operation, version, bytes(20))
            before = counted.total()
            began = time.perf_counter()
            answer = await ask("eth_estimateUserOperationGas", dummy, entry_point)
            seconds.append(time.perf_counter() - began)
            calls += counted.total() - before
            # alto also tells limits of a paymaster where there is none.
            found = codec_for(version).parse({**dummy, **{name: answer[name] for name in LIMITS}})
            sent, hashed = signed(found, version, bytes.fromhex(entry_point[2:]))
            await ask("eth_sendUserOperation", sent, entry_point)
            async with asyncio.timeout(MOST_SECONDS):
                receipt = await ask("eth_getUserOperationReceipt", to_data(hashed))
                while receipt is None:
                    await asyncio.sleep(POLL_SECONDS)
                    receipt = await ask("eth_getUserOperationReceipt", to_data(hashed))
            if not receipt["success"]:
                raise RuntimeError(f"{bundler.name} estimated too little: {receipt}")
            limits += found.call_gas_limit + found.verification_gas_limit + found.pre_verification_gas
            used += int(receipt["actualGasUsed"], 16)
    return Estimates(statistics.median(seconds), calls / ESTIMATED, limits / used)


@asynccontextmanager
async def counting(node_url: str) -> AsyncIterator[tuple[str, Counter[str]]]:
    """An address that passes calls on to a node, and how many there were of each method."""
    counted: Counter[str] = Counter()
    async with aiohttp.ClientSession() as session:

        async def relay(request: web.Request) -> web.Response:
            body = await request.read()
            decoded = msgspec.json.decode(body)
            counted.update(call["method"] for call in (decoded if isinstance(decoded, list) else [decoded]))
            async with session.post(node_url, data=body, headers={"Content-Type": "application/json"}) as answer:
                return web.Response(body=await answer.read(), content_type="application/json")

        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_post("/", relay)
        runner = web.AppRunner(application)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield f"http://127.0.0.1:{port}", counted
        finally:
            await runner.cleanup()


@asynccontextmanager
async def started(name: str, url: str, deployment: Deployment, version: Version) -> AsyncIterator[Bundler | None]:
    """A contender that is running. What is going on in this loop goes on while it starts and ends."""
    manager = CONTENDERS[name](url, deployment, version)
    bundler = await asyncio.to_thread(manager.__enter__)
    try:
        yield bundler
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)


async def measure(name: str, version: Version, count: int, senders: int) -> Figures | None:
    """One contender with one load, on a chain of its own."""
    async with chain() as (rpc, url, deployment):
        wanted = await operations(rpc, deployment, version, count)
        async with started(name, url, deployment, version) as bundler:
            if bundler is None:
                return None
            return await load(bundler, url, deployment.entry_points[version], wanted, senders)


async def count_calls(name: str, version: Version, senders: int) -> tuple[Counter[str], Estimates] | None:
    """The calls that a contender makes for COUNTED operations, and its estimates."""
    async with chain() as (rpc, url, deployment), counting(url) as (relayed, counted):
        wanted = await operations(rpc, deployment, version, COUNTED)
        async with started(name, relayed, deployment, version) as bundler:
            if bundler is None:
                return None
            counted.clear()
            await load(bundler, url, deployment.entry_points[version], wanted, senders)
            made = Counter(counted)
            return made, await estimated(bundler, url, deployment, version, counted)


async def main(options: argparse.Namespace) -> None:
    version: Version = options.entry_point
    names = ["capstan-full"] if options.full else options.only or ["capstan", "alto"]
    validation = "by ERC-7562" if options.full else "by simulation"
    print(
        f"operations that create an account, entry point {version}, {options.senders} senders, validated {validation}"
    )
    for count in options.counts:
        found = {name: await measure(name, version, count, options.senders) for name in names}
        print(f"\n{count} operations      accept p50   accept p95   included/s   processor ms/operation")
        for name, figures in found.items():
            if figures is None:
                print(f"{name:14}   not installed")
                continue
            p50, p95 = (1000 * figures.percentile(part) for part in (50, 95))
            print(f"{name:14} {p50:12.1f} ms {p95:9.1f} ms {figures.rate:11.1f} {1000 * figures.processor:13.1f}")
        ours, theirs = found.get("capstan"), found.get("alto")
        if ours is not None and theirs is not None:
            print(
                f"ratio to alto: {ours.rate / theirs.rate:.2f} x included per second,"
                f" {theirs.percentile(50) / ours.percentile(50):.2f} x faster to accept (p50),"
                f" {theirs.processor / ours.processor:.2f} x less processor time"
            )
    print(f"\ncalls to the node for {COUNTED} operations")
    for name in names:
        seen = await count_calls(name, version, options.senders)
        if seen is not None:
            counted, estimates = seen
            most = ", ".join(f"{method} {number}" for method, number in counted.most_common(6))
            print(f"{name:14} {counted.total() / COUNTED:.1f} for each operation: {most}")
            print(
                f"{'':14} estimates: {1000 * estimates.seconds:.0f} ms and {estimates.calls:.1f} calls each,"
                f" limits {estimates.ratio:.2f} x of what was used"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--senders", type=int, default=8)
    parser.add_argument("--entry-point", default="0.7", choices=["0.6", "0.7", "0.8"])
    parser.add_argument("--only", nargs="+", choices=["capstan", "alto"])
    parser.add_argument("--full", action="store_true", help="validate by ERC-7562; without alto")
    asyncio.run(main(parser.parse_args()))
