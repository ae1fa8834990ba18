"""Looks names up for the guarded client, in threads of its own.

The system's resolver blocks a thread until it answers, and whoever chose the name decides how long that takes. In the
threads that the process shares, a few slow names would keep everybody waiting; here they delay only other strangers.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from socket import AF_UNSPEC, AI_ADDRCONFIG, AI_NUMERICHOST, AI_NUMERICSERV, SOCK_STREAM, AddressFamily, getaddrinfo
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

_THREADS = 32


class PooledResolver(AbstractResolver):
    """`getaddrinfo` in a bounded number of threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="names")

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: AddressFamily = AF_UNSPEC,
    ) -> list[ResolveResult]:
        """All addresses of a name. Raises `OSError`."""
        ask = partial(getaddrinfo, host, port, type=SOCK_STREAM, family=family, flags=AI_ADDRCONFIG)
        found: list[Any] = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        return [
            ResolveResult(
                hostname=host,
                # The address without what follows it for IPv6; a scope stays in it, and is refused later.
                host=target[0],
                port=target[1],
                family=kind,
                proto=protocol,
                flags=AI_NUMERICHOST | AI_NUMERICSERV,
            )
            for kind, _, protocol, _, target in found
        ]

    async def close(self) -> None:
        """Wait for no look-up that is under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)
