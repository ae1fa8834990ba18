"""A bounded number of worker processes that run operations in an EVM.

Used by the local backend, one pool for the whole service. A process runs one job at a time; the others wait in a queue
that has a bound. A process that takes too long, or breaks, is killed and replaced by the next job that needs one.
The event loop never waits for Python code that runs an EVM.
"""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import msgspec
import structlog

from capstan.bundler.validation.evm.messages import LARGEST_MESSAGE, LENGTH_BYTES, Job, Report
from capstan.core.errors import InternalError, Unavailable

log = structlog.get_logger(__name__)

_PROGRAM = ("-P", "-m", "capstan.bundler.validation.evm.worker")
# Beyond the time of a job, after which a worker ends itself: starting a process and loading its modules.
_START_SECONDS = 60.0
_STOP_SECONDS = 5.0
# Codes that a worker is known to have. Beyond that many the process is replaced, so that it does not grow for ever.
_CODES_AT_ONCE = 4096


class JobTimeout(Exception):
    """The run took too long and was ended."""


class WorkerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many processes there are, how many jobs may wait, and how long one may take."""

    processes: int = 2
    waiting: int = 256
    job_seconds: float = 10.0


class _Process:
    """One worker process, spoken to over a socket that is its standard input and output.

    Not a process of asyncio's: there `kill` can take the exit status away from whoever waits for it, and one that is
    cancelled while it starts may never be said to have ended.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self.codes: set[bytes] = set()

    @classmethod
    async def start(cls) -> "_Process":
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = _spawn(theirs.fileno())
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            # A worker whose input ends does too.
            ours.close()
            raise
        return cls(process, reader, writer)

    async def ask(self, body: bytes) -> bytes:
        self._writer.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)
        await self._writer.drain()
        length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
        if length > LARGEST_MESSAGE:
            raise ConnectionError("a worker's answer is too large")
        return await self._reader.readexactly(length)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def kill(self) -> int | None:
        """End it if it is still there; returns how it ended, None if that could not be seen."""
        self._process.kill()
        return await self._ended()

    async def stop(self) -> None:
        """Let it end by itself: its input ends."""
        self._writer.close()
        if await self._ended() is None:
            await self.kill()

    async def _ended(self) -> int | None:
        try:
            return await asyncio.to_thread(self._process.wait, _STOP_SECONDS)
        except subprocess.TimeoutExpired:
            log.error("validation.worker_stays", pid=self.pid)
            return None
        finally:
            self._writer.close()


def _spawn(file: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *_PROGRAM], stdin=file, stdout=file)


class Workers:
    """The pool. Processes start when they are needed. Close it at the end."""

    def __init__(self, limits: WorkerLimits | None = None) -> None:
        self.limits = limits or WorkerLimits()
        self._idle: list[_Process] = []
        self._free = asyncio.Semaphore(self.limits.processes)
        self._waiting = 0
        self._running = 0
        self._closed = False
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Report)
        # How many processes were killed, for those who watch.
        self.killed = 0

    async def run(self, make: Callable[[set[bytes]], Job]) -> Report:
        """Run a job. `make` is told which codes the worker has, and makes the job with those it lacks.

        Raises `JobTimeout`, and `Unavailable` when too many jobs wait already.
        """
        if self._closed:
            raise Unavailable("The service is stopping.")
        if self._waiting >= self.limits.waiting:
            raise Unavailable("Too many operations wait for their validation; try again.")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        self._running += 1
        try:
            return await self._run(make)
        finally:
            self._running -= 1
            self._free.release()

    async def warm(self) -> None:
        """Start a process ahead of the first job, if there is none: it loads its modules while nobody waits for it."""
        if self._closed or self._idle or self._running:
            return
        async with self._free:
            await self._keep(await self._start())

    async def _keep(self, process: _Process) -> None:
        """Let a process wait for a job, unless the pool was closed meanwhile."""
        if self._closed:
            await process.stop()
        else:
            self._idle.append(process)

    async def _run(self, make: Callable[[set[bytes]], Job]) -> Report:
        process = self._idle.pop() if self._idle else await self._start()
        kept = False
        try:
            job = make(process.codes)
            try:
                answer = await asyncio.wait_for(
                    process.ask(self._encoder.encode(job)), self.limits.job_seconds + _START_SECONDS
                )
            except (TimeoutError, asyncio.IncompleteReadError, OSError):
                raise await self._lost(process) from None
            process.codes.update(job.codes)
            report = self._decoder.decode(answer)
            if report.fault:
                log.error("validation.worker_fault", reason=report.fault)
                raise InternalError("The validation of the operation failed through a fault of ours.")
            kept = not self._closed and len(process.codes) < _CODES_AT_ONCE
            return report
        finally:
            # Also when the caller has gone in the meantime: an answer that nobody read must not be taken for the next.
            if kept:
                self._idle.append(process)
            else:
                self.killed += 1
                await process.kill()

    async def _start(self) -> _Process:
        try:
            return await _Process.start()
        except OSError as error:
            log.error("validation.no_worker", reason=type(error).__name__)
            raise Unavailable("No process could be started to validate the operation in.") from None

    async def _lost(self, process: _Process) -> Exception:
        """Why a worker did not answer. It ends itself when its time is over; then its pipe closes."""
        status = await process.kill()
        log.warning("validation.worker_lost", status=status)
        if status in (-signal.SIGALRM, -signal.SIGKILL):
            return JobTimeout()
        return InternalError("A process that validates operations ended by itself.")

    @property
    def idle(self) -> list[int]:
        """The processes that wait for a job, by their ids."""
        return [process.pid for process in self._idle]

    async def close(self) -> None:
        """End all processes. Jobs under way fail."""
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(process.stop() for process in idle))
