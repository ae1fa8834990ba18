"""What a list of 200 token balances costs: calls to the node, time, and reads per second once it is known.

A development chain gets 200 sample tokens, all held by one address; the service indexes it. The baseline asks the node
for the same values, one `eth_call` after the other, as a script would. The first answer of the service is counted in
calls to the node, which pass through a relay here; so are the answers after it. Reads per second are what wrk gets, and
what the processor time of the server comes to on one whole core, which other work on the machine disturbs less.

    python bench/balances.py [--tokens 200] [--seconds 5]
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from capstan.core.hexes import parse_data, to_checksum_address, to_data
from capstan.devnet.artifacts import call_data, load_contract
from capstan.devnet.deploy import deploy_all
from capstan.devnet.evm import EvmNode
from capstan.devnet.install import ensure_node_project
from capstan.devnet.models import Deployment
from capstan.devnet.rpc import NodeRpc

HOLDER = "0x" + "5a" * 20
NEVER = 3600.0
MOST_COLD_CALLS = 3
LEAST_WARM_RATE = 3000
Service = tuple[subprocess.Popen[str], str, str]
CAPSTAN = [sys.executable, "-m", "capstan"]


class Relay:
    """Passes calls on to the node and counts those that read state."""

    def __init__(self, node_url: str) -> None:
        self.node_url = node_url
        self.reads = 0
        self.port = 0

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.reads += body.count(b'"eth_call"') + body.count(b'"eth_getCode"')
        headers = {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.node_url, data=body, headers=headers) as answer,
        ):
            return web.Response(body=await answer.read(), content_type="application/json")

    async def start(self) -> web.AppRunner:
        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_post("/", self.handle)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        return runner


async def make_tokens(rpc: NodeRpc, count: int) -> list[str]:
    """That many sample tokens, of each of which the holder has some."""
    (sender, *_) = await rpc.call("eth_accounts")
    compiled = load_contract("SampleERC20")
    hashes = []
    for number in range(count):
        code = compiled.init_code(["string", "string", "uint8"], [f"Token {number}", f"T{number}", number % 19])
        hashes.append(await rpc.call("eth_sendTransaction", {"from": sender, "data": to_data(code), "gas": "0x2dc6c0"}))
        if number % 10 == 9:
            await rpc.call("evm_mine")
    await rpc.call("evm_mine")
    receipts = [await rpc.call("eth_getTransactionReceipt", item) for item in hashes]
    tokens = [to_checksum_address(receipt["contractAddress"]) for receipt in receipts]
    for number, token in enumerate(tokens):
        data = to_data(call_data("mint(address,uint256)", HOLDER, 10**20 + number))
        await rpc.call("eth_sendTransaction", {"from": sender, "to": token, "data": data, "gas": "0x30d40"})
    for _ in range(3):
        await rpc.call("evm_mine")
    return tokens


async def one_by_one(rpc: NodeRpc, tokens: list[str]) -> float:
    """The seconds that a plain loop takes for balances, names, symbols and decimals."""
    started = time.perf_counter()
    for token in tokens:
        for data in (call_data("balanceOf(address)", HOLDER), *map(call_data, ("name()", "symbol()", "decimals()"))):
            parse_data(await rpc.call("eth_call", {"to": token, "data": to_data(data)}, "latest"))
    return time.perf_counter() - started


def start_service(directory: Path, deployment: Deployment, port: int) -> Service:
    """A `capstan serve` on the chain: the process, the address of its API, and a key."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CAPSTAN_")}
    data = ["--data-dir", str(directory / "data")]
    command = [*CAPSTAN, "keys", "create", "--plan", "enterprise", "--mode", "test", "--json", *data]
    made = subprocess.run(command, env=kept, capture_output=True, text=True, check=True, timeout=60)
    network = {
        "upstreams": [f"http://127.0.0.1:{port}"],
        "multicall3": deployment.multicall3,
        "native_usd_feed": next(feed.address for feed in deployment.price_feeds if feed.token is None),
        "block_time_ms": 1000,
        "default_testnet": True,
    }
    environment = {"CAPSTAN_LOG__ACCESS": "false", "CAPSTAN_NETWORKS": json.dumps({"ethereum/devnet": network})}
    process = subprocess.Popen(
        [*CAPSTAN, "serve", "--port", "0", *data], env={**kept, **environment}, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if '"event": "started"' in line:
            return process, json.loads(line)["base_url"], json.loads(made.stdout)["key"]
    raise SystemExit("the service did not start")


def processor_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(
    tokens: list[str], relay: Relay, service: tuple[subprocess.Popen[str], str, str], seconds: int
) -> bool:
    process, base_url, key = service
    url = f"{base_url}/tokens/ethereum/balances/{HOLDER}?limit=100"
    headers = {"X-API-Key": key}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def ask() -> dict[str, Any]:
            async with session.get(url) as answer:
                found: dict[str, Any] = await answer.json()
                assert answer.status == 200, found
                return found

        # The index is asked first, for an address that has nothing, so that only the balances are left to be read.
        async with session.get(f"{base_url}/nfts/ethereum/owned/{HOLDER}"):
            pass
        await asyncio.sleep(2)
        before, started = relay.reads, time.perf_counter()
        found = await ask()
        cold, cold_seconds = relay.reads - before, time.perf_counter() - started
        assert found["total"] == len(tokens), found["total"]
        before = relay.reads
        for _ in range(100):
            await ask()
        again = relay.reads - before
        command = ["wrk", "-t1", "-c16", f"-d{seconds}s", "-H", f"X-API-Key: {key}", url]
        used = processor_seconds(process.pid)
        output = (await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)).stdout
        used = processor_seconds(process.pid) - used
    requests = int(next(line for line in output.splitlines() if "requests in" in line).split()[0])
    print(f"calls to the node, first answer     {cold}   (goal: at most {MOST_COLD_CALLS})")
    print(f"calls to the node, next 100 answers {again}   (goal: 0)")
    print(f"time of the first answer            {cold_seconds * 1000:.0f} ms")
    print(f"reads per second, of 100 tokens     {requests / seconds:,.0f}")
    print(f"  for each second of processor time {requests / used:,.0f}   (goal: at least {LEAST_WARM_RATE:,})")
    return cold <= MOST_COLD_CALLS and again == 0 and requests / used >= LEAST_WARM_RATE


async def run(tokens: int, seconds: int) -> bool:
    project = ensure_node_project(print)
    node = EvmNode(project, block_time=NEVER)
    await node.start()
    try:
        deployment = await deploy_all(node.url, print, project=project)
        async with NodeRpc(node.url) as rpc:
            made = await make_tokens(rpc, tokens)
            plain = await one_by_one(rpc, made)
        print(f"one call after the other            {plain * 1000:.0f} ms, {4 * tokens} calls")
        relay = Relay(node.url)
        runner = await relay.start()
        with tempfile.TemporaryDirectory(prefix="capstan-bench-") as directory:
            service = await asyncio.to_thread(start_service, Path(directory), deployment, relay.port)
            try:
                return await measure(made, relay, service, seconds)
            finally:
                service[0].terminate()
                await asyncio.to_thread(service[0].wait, 30)
                await runner.cleanup()
    finally:
        await node.stop()


def main() -> int:
    """Measure and print. The exit code says whether the goals were met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=5)
    options = parser.parse_args()
    return 0 if asyncio.run(run(options.tokens, options.seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())
