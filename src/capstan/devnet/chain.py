"""Runs the EVM development chain alone, for services that are processes of their own: `python -m capstan.devnet.chain`.

Used by deploy/compose.yaml. Starts the node, deploys the sample contracts, listens on an address that others can reach,
and writes a capstan.toml with the network, the keys of its signers and its contracts. The keys are worthless and known
to everybody: never send anything of value there. The chain starts afresh each time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from pathlib import Path

import msgspec

from capstan.devnet.deploy import deploy_all
from capstan.devnet.evm import HOST, EvmNode
from capstan.devnet.install import ensure_node_project
from capstan.devnet.models import Deployment

_PIECE = 65_536
_CONNECT_SECONDS = 10.0


def settings_text(deployment: Deployment, url: str) -> str:
    """A capstan.toml for services that reach the chain at this address."""
    quoted = {name: msgspec.json.encode(value).decode() for name, value in {"url": url}.items()}
    native = next(feed.address for feed in deployment.price_feeds if feed.token is None)
    signers = [account.private_key for account in deployment.bundler_executors]
    lines = [
        "# Written by the development chain. Everybody knows these keys.",
        'mode = "development"',
        "",
        "[bundler]",
        f"signers = {msgspec.json.encode(signers).decode()}",
        "",
        "[gas]",
        f'signer = "{deployment.paymaster_signer.private_key}"',
        "",
        '[networks."ethereum/devnet"]',
        f'upstreams = [{{ url = {quoted["url"]}, name = "devchain" }}]',
        f'multicall3 = "{deployment.multicall3}"',
        f'native_usd_feed = "{native}"',
        "block_time_ms = 1000",
    ]
    for name in ("entry_points", "factories", "paymasters"):
        pairs = ", ".join(f'"{version}" = "{address}"' for version, address in getattr(deployment, name).items())
        lines.append(f"{name} = {{ {pairs} }}")
    return "\n".join(lines) + "\n"


async def forward(host: str, port: int, target: int) -> asyncio.Server:
    """Listen there and pass every connection on to a port of this machine."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CONNECT_SECONDS):
                node_reader, node_writer = await asyncio.open_connection(HOST, target)
            with contextlib.closing(node_writer):
                ways = [
                    asyncio.create_task(_carry(reader, node_writer)),
                    asyncio.create_task(_carry(node_reader, writer)),
                ]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    return await asyncio.start_server(connected, host, port)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()


async def run(host: str, port: int, config: Path, url: str, block_time: float) -> None:
    """Run the chain until a signal, or until the node ends."""
    project = await asyncio.to_thread(ensure_node_project, print)
    node = EvmNode(project, block_time=block_time)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await node.start()
    try:
        deployment = await deploy_all(node.url, print, project=project)
        async with await forward(host, port, node.port):
            draft = config.with_suffix(".new")
            draft.write_text(settings_text(deployment, url), encoding="utf-8")
            draft.replace(config)
            sys.stdout.write(f"the chain listens on {host}:{port}; {config} is written\n")
            sys.stdout.flush()
            ended, stopped = asyncio.create_task(node.wait_closed()), asyncio.create_task(stop.wait())
            await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in (ended, stopped):
                task.cancel()
    finally:
        await node.stop()


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m capstan.devnet.chain")
    parser.add_argument("--host", default=HOST, help="address to listen on")
    parser.add_argument("--port", type=int, default=8545)
    parser.add_argument("--url", default="http://127.0.0.1:8545", help="address at which the services reach the chain")
    parser.add_argument("--config", type=Path, default=Path("devchain.toml"), help="settings file to write")
    parser.add_argument("--block-time", type=float, default=1.0)
    given = parser.parse_args()
    asyncio.run(run(given.host, given.port, given.config, given.url, given.block_time))


if __name__ == "__main__":
    main()
