"""What the feed loses when upstreams die: 1,000 clients, 300 blocks, the upstreams killed 20 times. It must be nothing.

The whole service in front of the development chain, whose node is reached through two relays, one over WebSocket. With
each kill both relays vanish for a moment, with everything that is under way. Afterwards each client must have been told
every block once, each the child of the one before.

    python bench/feed_faults.py [--clients 1000] [--blocks 300] [--kills 20]
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import websockets

from capstan.devnet.evm import EvmNode
from capstan.devnet.install import ensure_node_project
from capstan.devnet.rpc import NodeRpc

ROOT = Path(__file__).resolve().parent.parent
NEVER = 3600.0
SECONDS = 120.0


class Head(msgspec.Struct):
    """What is looked at of a head."""

    hash: str
    parent: str = msgspec.field(name="parentHash")
    number: str


class Params(msgspec.Struct):
    """The params of a notification."""

    result: Head


class Notification(msgspec.Struct):
    """A pushed message; replies have no params."""

    params: Params | None = None


DECODER = msgspec.json.Decoder(Notification)


class Relay:
    """Passes bytes on to the node, until it is killed."""

    def __init__(self, node_port: int) -> None:
        self._node_port = node_port
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen: on a free port the first time, afterwards on that one."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def kill(self) -> None:
        """Cut everything, and listen no more."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._node_port)
        await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            return
        finally:
            self._writers.discard(writer)
            writer.close()


@asynccontextmanager
async def service(upstreams: list[str], directory: str) -> AsyncIterator[str]:
    """The service; gives the address of its feed."""
    networks = {"ethereum/devnet": {"upstreams": upstreams}}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("CAPSTAN_")},
        "CAPSTAN_DATA_DIR": directory,
        "CAPSTAN_LOG__ACCESS": "false",
        "CAPSTAN_NETWORKS": json.dumps(networks),
    }
    command = [sys.executable, "-m", "capstan", "keys", "create", "--plan", "enterprise", "--json"]
    made = await asyncio.to_thread(
        subprocess.run, command, env=environment, check=True, capture_output=True, timeout=60
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "capstan", "serve", "--port", "0", env=environment, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        while b'"event": "started"' not in (line := await asyncio.wait_for(process.stderr.readline(), 60)):
            if not line:
                raise SystemExit("the service did not start")
        reading = asyncio.create_task(process.stderr.read())
        base = json.loads(line)["base_url"].replace("http", "ws", 1)
        yield f"{base}/ws/ethereum/devnet?apiKey={json.loads(made.stdout)['key']}"
        process.terminate()
        await process.wait()
        await reading
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def follow(connection: Any, heads: list[Head], last: int) -> None:
    """Keep every head that is told, until the last one."""
    async for message in connection:
        told = DECODER.decode(message)
        if told.params is not None:
            heads.append(told.params.result)
            if int(heads[-1].number, 16) >= last:
                return


def faults(heads: list[Head], tip: str) -> int:
    """How many links of a client's chain are wrong: missing, repeated, out of order; and whether its end is missing."""
    wrong = sum(two.parent != one.hash for one, two in pairwise(heads))
    return wrong + (not heads or heads[-1].hash != tip)


async def drive(rpc: NodeRpc, relays: list[Relay], blocks: int, kills: int, random: Random) -> str:
    """Mine the blocks, kill the relays in between, and return the hash of the last block."""
    moments = set(random.sample(range(1, blocks - 1), kills))
    for block in range(blocks):
        await rpc.call("evm_mine")
        if block in moments:
            for relay in relays:
                relay.kill()
            await asyncio.sleep(random.random() * 0.3)
            for relay in relays:
                await relay.start()
        await asyncio.sleep(0.02)
    tip: str = (await rpc.call("eth_getBlockByNumber", "latest", False))["hash"]
    return tip


async def run(clients: int, blocks: int, kills: int) -> int:
    """Everything; returns the number of faults."""
    random = Random(1)
    async with AsyncExitStack() as stack:
        node = EvmNode(ensure_node_project(print), block_time=NEVER)
        await node.start()
        stack.push_async_callback(node.stop)
        rpc = await stack.enter_async_context(NodeRpc(node.url))
        relays = [Relay(node.port), Relay(node.port)]
        for relay in relays:
            await relay.start()
            stack.callback(relay.kill)
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        upstreams = [f"http://127.0.0.1:{relays[0].port}", f"ws://127.0.0.1:{relays[1].port}"]
        url = await stack.enter_async_context(service(upstreams, directory))
        chains: list[list[Head]] = [[] for _ in range(clients)]
        tasks = []
        for chain in chains:
            connection = await websockets.connect(url, compression=None, ping_interval=None, proxy=None)
            await connection.send('{"id":1,"method":"eth_subscribe","params":["newHeads",{"fromBlock":"0x1"}]}')
            tasks.append(asyncio.create_task(follow(connection, chain, blocks)))
        began = time.monotonic()
        tip = await drive(rpc, relays, blocks, kills, random)
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*tasks)
        took = time.monotonic() - began
        found = sum(faults(chain, tip) for chain in chains) + sum(len(chain) != blocks for chain in chains)
        print(f"{clients} clients, {blocks} blocks, {kills} kills of all upstreams, {took:.1f} s: {found} faults")
        return found


def main() -> None:
    """Run it; fails when anything was missed or repeated."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clients", type=int, default=1000)
    options.add_argument("--blocks", type=int, default=300)
    options.add_argument("--kills", type=int, default=20)
    chosen = options.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if asyncio.run(run(chosen.clients, chosen.blocks, chosen.kills)):
        raise SystemExit("a client has missed a block or was told one twice")


if __name__ == "__main__":
    main()
