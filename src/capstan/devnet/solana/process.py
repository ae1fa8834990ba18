"""Runs the Solana node as a child process. `capstan dev` and the tests use `SolanaNode`; nothing here imports the
node's own modules, so that the parent needs neither LiteSVM nor the memory for it.

The child ends when its standard input closes. The parent holds the other end, so the child cannot outlive it, not even
after `kill -9`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any

from capstan.devnet.errors import DevnetError

OUTPUT_LINES_KEPT = 40


class SolanaNodeError(DevnetError):
    """The node did not start. The message carries the last lines it wrote."""


class SolanaNode:
    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        slot_milliseconds: int = 400,
        finality_slots: int = 2,
        start_seconds: float = 30.0,
        stop_seconds: float = 5.0,
    ) -> None:
        self._host = host
        self._arguments = [
            *("--host", host),
            *("--port", str(port)),
            *("--slot-milliseconds", str(slot_milliseconds)),
            *("--finality-slots", str(finality_slots)),
        ]
        self._start_seconds = start_seconds
        self._stop_seconds = stop_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._output: deque[str] = deque(maxlen=OUTPUT_LINES_KEPT)
        self._port = 0

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def url(self) -> str:
        self._running()
        return f"http://{self._authority(self._port)}"

    @property
    def ws_url(self) -> str:
        """Subscriptions on the port above, where Solana clients expect them. The HTTP port serves them too."""
        self._running()
        return f"ws://{self._authority(self._port + 1)}"

    async def __aenter__(self) -> SolanaNode:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        if self._process is not None:
            raise SolanaNodeError("this Solana node is already running")
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "capstan.devnet.solana", *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=_environment(),
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [asyncio.create_task(self._collect(self._process.stderr))]
        try:
            self._port = await self._ready_port(self._process.stdout)
        except BaseException:
            await self.stop()
            raise
        self._readers.append(asyncio.create_task(self._collect(self._process.stdout)))

    async def wait_closed(self) -> int:
        """Waits, without limit, until the node has ended, and returns its exit code. For watching over it."""
        return await self._running().wait()

    async def stop(self) -> None:
        """Ends the child, by force if it does not go by itself. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        try:
            async with asyncio.timeout(self._stop_seconds):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._readers = []

    async def _ready_port(self, stdout: asyncio.StreamReader) -> int:
        try:
            async with asyncio.timeout(self._start_seconds):
                line = await stdout.readline()
        except TimeoutError as error:
            raise self._failed(f"was not ready within {self._start_seconds:g} s") from error
        if not line:
            await self._drain_errors()
            raise self._failed("ended before it was ready")
        try:
            ready: Any = json.loads(line)
            return int(ready["port"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._failed(f"wrote {line[:200]!r} where its port was expected") from error

    async def _drain_errors(self) -> None:
        """The child is gone: what it wrote last is about to arrive."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.wait(self._readers)

    def _failed(self, what: str) -> SolanaNodeError:
        output = "\n".join(self._output) or "(it wrote nothing)"
        return SolanaNodeError(f"the Solana development node {what}. Its last output:\n{output}")

    async def _collect(self, stream: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # a line longer than the reader's buffer; the reader has dropped it
                continue
            if not line:
                return
            self._output.append(line.decode("utf-8", "replace").rstrip())

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._port == 0:
            raise SolanaNodeError("this Solana node is not running: call start() first")
        return self._process

    def _authority(self, port: int) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{port}"


def _environment() -> dict[str, str]:
    """The child must find the same Capstan as the parent, also when that came from a path and not from an install."""
    source = str(Path(__file__).resolve().parents[3])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
