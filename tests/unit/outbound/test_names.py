"""Names are looked up in threads of their own, so that slow ones keep nobody else waiting."""

import asyncio
import threading
from socket import AF_INET, gaierror
from typing import Any

import pytest

from capstan.outbound import names
from capstan.outbound.names import PooledResolver


async def test_addresses_of_a_name() -> None:
    resolver = PooledResolver()
    found = await resolver.resolve("127.0.0.1", 443)
    assert [(item["host"], item["port"], item["family"]) for item in found] == [("127.0.0.1", 443, AF_INET)]
    with pytest.raises(gaierror):
        await resolver.resolve("no-such-name.invalid", 443)
    await resolver.close()


async def test_slow_names_leave_the_threads_of_the_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, waiting = threading.Event(), threading.Semaphore(0)

    def slow(*_arguments: Any, **_more: Any) -> list[Any]:
        waiting.release()
        assert gate.wait(60)
        return []

    monkeypatch.setattr(names, "getaddrinfo", slow)
    resolver = PooledResolver()
    lookups = [asyncio.create_task(resolver.resolve(f"slow-{number}.example")) for number in range(100)]
    for _ in range(names._THREADS):
        assert await asyncio.to_thread(waiting.acquire, timeout=30)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "at once"), 30) == "at once"
    gate.set()
    assert await asyncio.gather(*lookups) == [[]] * 100
    await resolver.close()
