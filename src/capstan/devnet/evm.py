"""Runs the EVM development chain: one Hardhat node as a child process.

Started and stopped by the development runner and by the test fixtures. The node mines a block every `block_time`
seconds, also when nothing happens, and does not mine on arrival: a transaction waits in the mempool as on a real chain.
It serves HTTP and WebSocket on one loopback port. The child ends with this process, however this process ends. This
module must not deploy anything; deploy.py does that.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque

import msgspec

from capstan.devnet.accounts import FUNDED_ACCOUNTS, MNEMONIC
from capstan.devnet.errors import DevnetError
from capstan.devnet.install import NODE_SOURCE, NodeProject

CHAIN_ID = 31337
HOST = "127.0.0.1"
STARTUP_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 5.0
SMALLEST_BLOCK_TIME_SECONDS = 0.05

_READY = "capstan-devnet-ready "
_KEPT_LINES = 200
_LONGEST_LINE = 4096
_CHUNK = 65536
_SHOWN_LINES = 20


class _Ready(msgspec.Struct):
    port: int


class _Output:
    """The last lines of the child's output. Bounded, whatever the child prints."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._partial = b""

    def feed(self, chunk: bytes) -> list[str]:
        """Adds output and returns the lines it completed."""
        *complete, self._partial = (self._partial + chunk).split(b"\n")
        if len(self._partial) > _LONGEST_LINE:
            complete.append(self._partial)
            self._partial = b""
        lines = [line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip() for line in complete]
        self.lines.extend(lines)
        return lines

    def tail(self) -> str:
        lines = [*self.lines, self._partial.decode("utf-8", "replace")]
        return "\n".join(f"  {line}" for line in [line for line in lines if line][-_SHOWN_LINES:])


class EvmNode:
    """One development node. Start it once; `port`, `pid` and `url` are known afterwards."""

    def __init__(
        self,
        project: NodeProject,
        *,
        port: int = 0,
        block_time: float = 1.0,
        startup_timeout: float = STARTUP_TIMEOUT_SECONDS,
    ) -> None:
        if block_time < SMALLEST_BLOCK_TIME_SECONDS:
            raise ValueError(f"block_time is at least {SMALLEST_BLOCK_TIME_SECONDS} seconds")
        self._project = project
        self._asked_port = port
        self._block_time = block_time
        self._startup_timeout = startup_timeout
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[int] | None = None
        self._output = _Output()

    @property
    def port(self) -> int:
        if self._ready is None or not self._ready.done():
            raise RuntimeError("the development chain is not started")
        return self._ready.result()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def websocket_url(self) -> str:
        return f"ws://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the development chain is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def output(self) -> tuple[str, ...]:
        """The last lines the node printed."""
        return tuple(self._output.lines)

    async def start(self) -> None:
        """Returns when the node accepts requests. On any failure nothing is left running."""
        if self._process is not None:
            raise RuntimeError("the development chain is started once")
        self._ready = asyncio.get_running_loop().create_future()
        try:
            self._process = await self._spawn()
        except OSError as error:
            raise DevnetError(
                f"cannot run {self._project.node} in {self._project.directory}: {error}. "
                "Run: python -m capstan.devnet.install"
            ) from error
        self._reader = asyncio.create_task(self._read_output(self._process, self._ready))
        try:
            async with asyncio.timeout(self._startup_timeout):
                await asyncio.shield(self._ready)
        except TimeoutError:
            await self.stop()
            raise DevnetError(
                f"the development chain was not ready after {self._startup_timeout:g} seconds. "
                f"Its last output:\n{self._output.tail()}"
            ) from None
        except BaseException:
            await self.stop()
            raise

    async def wait_closed(self) -> int:
        """Waits, without limit, until the node has ended, and returns its exit code. For watching over it."""
        if self._process is None:
            raise RuntimeError("the development chain is not started")
        return await self._process.wait()

    async def stop(self) -> None:
        """Ends the node: SIGTERM, and SIGKILL when it has not ended in time. Does nothing when it has ended."""
        process, reader, ready = self._process, self._reader, self._ready
        if process is None or reader is None or ready is None:
            return
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if process.stdin is not None:
            process.stdin.close()
        await reader
        if ready.done() and not ready.cancelled():
            ready.exception()  # Marks a failed start as seen; start() has raised it or another error already.

    async def _spawn(self) -> asyncio.subprocess.Process:
        # Its own session: Ctrl-C in the terminal reaches only this process, which then stops the node in order.
        return await asyncio.create_subprocess_exec(
            str(self._project.node),
            str(NODE_SOURCE / "run.js"),
            str(self._project.directory),
            str(self._asked_port),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=str(self._project.directory),
            env=self._environment(),
            start_new_session=True,
        )

    def _environment(self) -> dict[str, str]:
        # Whatever the machine sets for Node or Hardhat must not change how this chain behaves.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("HARDHAT_") and name not in {"NODE_OPTIONS", "NODE_PATH", "DEBUG"}
        }
        return {
            **inherited,
            "HARDHAT_DISABLE_TELEMETRY_PROMPT": "true",
            "CAPSTAN_DEVNET_MNEMONIC": MNEMONIC,
            "CAPSTAN_DEVNET_ACCOUNTS": str(FUNDED_ACCOUNTS),
            "CAPSTAN_DEVNET_CHAIN_ID": str(CHAIN_ID),
            "CAPSTAN_DEVNET_BLOCK_TIME_MS": str(round(self._block_time * 1000)),
        }

    async def _read_output(self, process: asyncio.subprocess.Process, ready: asyncio.Future[int]) -> None:
        """Drains the output until the child closes it, so that the child never blocks on a full pipe."""
        assert process.stdout is not None
        while chunk := await process.stdout.read(_CHUNK):
            for line in self._output.feed(chunk):
                if line.startswith(_READY) and not ready.done():
                    ready.set_result(msgspec.json.decode(line.removeprefix(_READY), type=_Ready).port)
        if not ready.done():
            ready.set_exception(
                DevnetError(f"the development chain ended before it was ready. Its last output:\n{self._output.tail()}")
            )
