"""What it costs to find an answer in the cache, against the least any cache could do: one look into a dict.

The baseline builds the tuple of network, method and params and looks it up. The params are new bytes every time, as
they are when they come from a socket, so that no hash is remembered. Each figure is the best of several rounds of the
same run. Run it with `make bench`, or alone: `python bench/cache.py`.
"""

import asyncio
import json
import time
from collections.abc import Callable

from msgspec import Raw

from capstan.core.clock import SystemClock
from capstan.rpc.cache.gateway import RpcCache
from capstan.rpc.cache.models import NetworkOptions
from capstan.rpc.cache.policy import ask

ROUNDS = 60
CALLS = 500
NETWORK = "ethereum/mainnet"
METHOD = "eth_call"


class Heads:
    """A chain that stands still."""

    latest_number: int | None = 20_000_000
    latest_hash: str | None = "0x" + "11" * 32
    finalized_number: int | None = 19_999_900

    def hash_at(self, number: int) -> str | None:
        return self.latest_hash if number == self.latest_number else None


def texts(offset: int, block: str) -> list[str]:
    """Params of `CALLS` different calls."""
    data = "0x70a08231" + "00" * 12
    calls = range(offset, offset + CALLS)
    return [json.dumps([{"to": "0x" + "ab" * 20, "data": f"{data}{call:040x}"}, block]) for call in calls]


def best(work: Callable[[bytes], object], params: list[str]) -> float:
    """Microseconds for one call, in the quickest round."""
    quickest = float("inf")
    for _ in range(ROUNDS):
        fresh = [text.encode() for text in params]
        began = time.perf_counter()
        for one in fresh:
            work(one)
        quickest = min(quickest, time.perf_counter() - began)
    return quickest / len(params) * 1e6


async def fill(cache: RpcCache, heads: Heads, params: list[str]) -> None:
    """Put answers for these calls into the cache."""

    async def call() -> Raw:
        return Raw(b'"0x' + b"00" * 32 + b'"')

    for text in params:
        plan = cache.lookup_now(NETWORK, "evm", METHOD, text.encode(), heads)
        if not isinstance(plan, bytes):
            await cache.fetch(plan, call, 5.0)


def found(cache: RpcCache, heads: Heads) -> Callable[[bytes], object]:
    """A lookup that must find something."""

    def work(params: bytes) -> None:
        if not isinstance(cache.lookup_now(NETWORK, "evm", METHOD, params, heads), bytes):
            raise RuntimeError("a miss, so this would not measure hits")

    return work


async def measure() -> list[tuple[str, float]]:
    """The name and the cost of each case."""
    heads = Heads()
    cache = RpcCache(SystemClock())
    cache.configure(NETWORK, NetworkOptions(head_seconds=3600.0))
    final, latest = texts(0, hex(19_999_000)), texts(0, "latest")
    await fill(cache, heads, final)
    await fill(cache, heads, latest)
    table = {(NETWORK, METHOD, text.encode()): b"" for text in final}

    def bare(params: bytes) -> None:
        if table.get((NETWORK, METHOD, params)) is None:
            raise RuntimeError("not there")

    key = ask(NETWORK, "evm", METHOD, final[0].encode()).key
    cases = [
        ("dict lookup", best(bare, final)),
        ("memory.get alone", best(lambda _: cache.memory.get(key), final)),
        ("hit, final", best(found(cache, heads), final)),
        ("hit, at the head", best(found(cache, heads), latest)),
    ]
    for batch in range(1, 100):
        await fill(cache, heads, texts(batch * CALLS, hex(19_999_000)))
    entries = cache.memory.statistics.entries
    await fill(cache, heads, final)
    best(found(cache, heads), final)
    cases.append((f"hit, final, among {entries:,} entries", best(found(cache, heads), final)))
    cases.append(("reading a call for the first time", best(lambda one: ask(NETWORK, "evm", METHOD, one), final)))
    cases[0] = (cases[0][0], min(cases[0][1], best(bare, final)))
    return cases


def main() -> None:
    cases = asyncio.run(measure())
    baseline = cases[0][1]
    for name, cost in cases:
        print(f"{name:40} {cost:6.2f} us  {cost / baseline:5.1f} x the baseline")


if __name__ == "__main__":
    main()
