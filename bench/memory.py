"""Whether memory stays flat over a million requests with ten thousand keys, and whether the cost of one request depends
on how many keys, networks or cached answers there are.

The whole service runs in this process; requests go to its fast path, with a connection that swallows the responses, and
misses to the bare node in a process of its own. The cache is bounded to a few megabytes, so that it is full early. The
first quarter of the requests fills what is bounded; after that the memory of the process must not grow. Costs are the
best of several rounds, so that other work on the machine disturbs them little. Takes a minute or two.

    python bench/memory.py [--requests 1000000] [--keys 10000]
"""

import argparse
import asyncio
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import uvloop
from sqlalchemy import insert

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.rpc import LOAD_CORE, peer  # noqa: E402 - found by the line above when run as a script
from capstan.access.secrets import digest, hint, new_secret  # noqa: E402
from capstan.app import Application  # noqa: E402
from capstan.logs import configure_logs  # noqa: E402
from capstan.server.fastpath import FastPath  # noqa: E402
from capstan.server.heads import RequestHead  # noqa: E402
from capstan.server.sent import Sent  # noqa: E402
from capstan.settings import LiveSettings  # noqa: E402
from capstan.storage.schema import accounts, api_keys  # noqa: E402
from capstan.wiring import open_database  # noqa: E402

NETWORKS = ("ethereum/sepolia", "base/sepolia", "polygon/amoy", "arbitrum/sepolia", "optimism/sepolia")
SAME_CALL = b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}'
# One request in so many is a miss with params that never repeat.
MISS_EVERY = 10
AT_ONCE = 50
ROUNDS = 40
MEBIBYTE = 1024 * 1024


class Swallow:
    """In the place of a connection: counts responses and tells when all are there."""

    def __init__(self) -> None:
        self.missing = 0
        self.idle = asyncio.Event()

    def answered_later(self, _underway: object, response: bytes | None) -> None:
        """One more."""
        check(response)
        self.missing -= 1
        if not self.missing:
            self.idle.set()

    async def wait(self) -> None:
        """Wait for all responses."""
        if self.missing:
            self.idle.clear()
            async with asyncio.timeout(30):
                await self.idle.wait()


def check(response: bytes | None) -> None:
    """Fail unless this is a 200."""
    if response is None or not response.startswith(b"HTTP/1.1 200 "):
        raise SystemExit(f"unexpected response: {response!r}")


def settings(directory: str, node: int) -> LiveSettings:
    """The service with a small cache and one upstream behind every network."""
    served = ", ".join(f'"{name}" = {{upstreams = ["http://127.0.0.1:{node}"]}}' for name in NETWORKS)
    environment = {
        "CAPSTAN_DATA_DIR": directory,
        "CAPSTAN_LOG__ACCESS": "false",
        "CAPSTAN_SERVER__PORT": "0",
        "CAPSTAN_CACHE__MEMORY_BYTES": str(8 * MEBIBYTE),
        "CAPSTAN_NETWORKS": f"{{{served}}}",
    }
    return LiveSettings(None, environment, {})


async def make_keys(live: LiveSettings, count: int) -> list[str]:
    """Keys, each of an account of its own, written in one go."""
    database = await open_database(live.current)
    made = [new_secret("live") for _ in range(count)]
    now = int(time.time() * 1_000_000)
    owner = {"name": "bench", "plan": "enterprise", "overrides": "{}", "status": "active", "created_at": now}
    try:
        async with database.write() as connection:
            await connection.execute(insert(accounts), [{"id": f"acc_{place}", **owner} for place in range(count)])
            rows = [
                {
                    "id": f"key_{place}",
                    "account_id": f"acc_{place}",
                    "name": "bench",
                    "mode": "live",
                    "digest": digest(secret),
                    "hint": hint(secret),
                    "created_at": now,
                }
                for place, secret in enumerate(made)
            ]
            await connection.execute(insert(api_keys), rows)
    finally:
        await database.close()
    return made


def head(secret: str, network: str) -> RequestHead:
    """The head of a request with this key."""
    return RequestHead(f"/v1/rpc/{network}".encode(), [(b"x-api-key", secret.encode())])


async def ask(fast_path: FastPath, asked: RequestHead, body: bytes, swallow: Swallow) -> None:
    """One request, waited for only where there is no other way."""
    outcome = fast_path.answer(asked, body, "127.0.0.1", True)
    if isinstance(outcome, bytes):
        check(outcome)
    elif isinstance(outcome, Sent):
        swallow.missing += 1
        outcome.connection = swallow
    else:
        check(await outcome)


def misses() -> Iterator[bytes]:
    """Bodies that never repeat."""
    count = 0
    while True:
        count += 1
        yield b'{"jsonrpc":"2.0","id":1,"method":"eth_getBalance","params":["0x%040x","latest"]}' % count


def resident_bytes() -> int:
    """The memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def watch_memory(fast_path: FastPath, heads: Sequence[RequestHead], requests: int) -> None:
    """Many requests, and the memory after each eighth of them."""
    swallow, bodies, turn = Swallow(), misses(), cycle(heads)
    levels: list[float] = []
    began = time.monotonic()
    for number in range(1, requests + 1):
        body = next(bodies) if number % MISS_EVERY == 0 else SAME_CALL
        await ask(fast_path, next(turn), body, swallow)
        if number % AT_ONCE == 0:
            # Lets answers of the node in, and the background work of the service.
            await asyncio.sleep(0)
            await swallow.wait()
        if number % max(requests // 8, 1) == 0:
            gc.collect()
            levels.append(resident_bytes() / MEBIBYTE)
            print(f"  {number:>10,} requests: {levels[-1]:7.1f} MiB", flush=True)
    grown = levels[-1] - levels[1]
    seconds = time.monotonic() - began
    print(f"memory over {requests:,} requests with {len(heads):,} keys: {grown:+.1f} MiB after the first quarter")
    print(f"  ({seconds:.0f} s, {levels[-1] / levels[1]:.3f} of the level then; 1.00 is flat)")


async def cost(run: Callable[[], Any], count: int) -> float:
    """Microseconds of processor time for one of `count` requests that `run` makes, in the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        await run()
        best = min(best, time.thread_time() - began)
        await asyncio.sleep(0)
    return best / count * 1_000_000


async def hit_cost(fast_path: FastPath, heads: Sequence[RequestHead], bodies: Sequence[bytes], count: int) -> float:
    """What an answer from memory costs, over these heads and bodies in turn."""
    swallow = Swallow()
    pairs = list(islice(zip(cycle(heads), cycle(bodies), strict=False), max(count, len(heads), len(bodies))))
    for asked, body in pairs:
        await ask(fast_path, asked, body, swallow)
        await swallow.wait()
    turn = cycle(pairs)

    async def run() -> None:
        for asked, body in islice(turn, count):
            check(fast_path.answer(asked, body, "127.0.0.1", True))  # type: ignore[arg-type] # all are in memory

    return await cost(run, count)


async def compare_costs(fast_path: FastPath, secrets: Sequence[str]) -> None:
    """The cost of an answer from memory with few and with many of everything."""
    one = [head(secrets[0], NETWORKS[0])]
    few = await hit_cost(fast_path, one, [SAME_CALL], 1000)
    print(f"an answer from memory, one key, one network, one cached answer: {few:.1f} µs")
    body = b'{"jsonrpc":"2.0","id":1,"method":"web3_sha3","params":["0x%08x"]}'
    cases: dict[str, tuple[Sequence[RequestHead], Sequence[bytes]]] = {
        f"{len(secrets):,} keys in turn": ([head(secret, NETWORKS[0]) for secret in secrets], [SAME_CALL]),
        f"{len(NETWORKS)} networks in turn": ([head(secrets[0], name) for name in NETWORKS], [SAME_CALL]),
        "5,000 cached answers in turn": (one, [body % number for number in range(5000)]),
    }
    for name, (heads, bodies) in cases.items():
        many = await hit_cost(fast_path, heads, bodies, 1000)
        again = await hit_cost(fast_path, one, [SAME_CALL], 1000)
        print(f"  {name}: {many:.1f} µs; then one of each again: {again:.1f} µs ({again / few:.2f} of before)")


async def run(requests: int, keys: int, node: int) -> None:
    """Everything."""
    with tempfile.TemporaryDirectory() as directory:
        live = settings(directory, node)
        configure_logs("warning", "json")
        secrets = await make_keys(live, keys)
        async with Application.open(live) as application:
            # The trackers read the head first.
            await asyncio.sleep(1)
            fast_path = application._fast_path
            await compare_costs(fast_path, secrets)
            await watch_memory(fast_path, [head(secret, NETWORKS[0]) for secret in secrets], requests)


def main() -> None:
    """Run everything."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--requests", type=int, default=1_000_000)
    arguments.add_argument("--keys", type=int, default=10_000)
    options = arguments.parse_args()
    with peer(LOAD_CORE, "0") as (node, _):
        uvloop.run(run(options.requests, options.keys, node))


if __name__ == "__main__":
    main()
