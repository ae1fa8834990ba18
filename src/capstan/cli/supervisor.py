"""Runs several service processes on one port and keeps them running.

`capstan serve` hands over to this when `process.workers` is more than one. Each worker is a `capstan serve` of its own
with the role `api`; the kernel spreads connections among them. The other roles get one process beside them. A process
that ends is started again, later each time while it does not stay. SIGHUP is passed on to all; SIGTERM and SIGINT are
passed on as SIGTERM, and the supervisor ends when all have. When the supervisor itself is killed, the processes notice
that the other end of their lifeline is closed, and stop. It serves nothing and opens no database.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence

import msgspec
import structlog

from capstan.cli.common import ExitCode
from capstan.server.sockets import bind
from capstan.settings import Problem, Settings, SettingsError

log = structlog.get_logger(__name__)

_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 30.0
# A process that lived for so long is one that works.
_STAYED_SECONDS = 30.0
_KILL_SECONDS = 15.0
_READY = b"1"


class Member(msgspec.Struct, frozen=True):
    """One of the processes: its name in the log, what it is started with, and what it adds to the environment."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def members(settings: Settings, arguments: Sequence[str], port: int) -> list[Member]:
    """The processes that these settings ask for. `arguments` are those of the command, without host, port and roles."""
    server, others = settings.server, [role for role in settings.process.roles if role != "api"]
    asked = [("api", server.host, port)] * settings.process.workers
    if others:
        # Nobody but a person on this machine has business with its port.
        asked.append((",".join(others), "127.0.0.1", 0))
    found = []
    for place, (roles, host, own_port) in enumerate(asked):
        where = ("--host", host, "--port", str(own_port), "--roles", roles, "--workers", "1")
        metrics = server.metrics_port + place if server.metrics_port else 0
        name = f"api-{place + 1}" if roles == "api" else "background"
        found.append(Member(name, (*arguments, *where), {"CAPSTAN_SERVER__METRICS_PORT": str(metrics)}))
    return found


def supervise(settings: Settings, arguments: Sequence[str]) -> ExitCode:
    """Run the processes until a signal. Returns how it ended."""
    if sys.platform != "linux":
        reason = "needs Linux; elsewhere start several processes on ports of their own behind a load balancer"
        raise SettingsError([Problem("settings", "process.workers", reason)])
    # Held, but not listened on: the port is ours, whichever of the processes is there.
    with bind(settings.server.host, settings.server.port, shared=True) as held:
        port = int(held.getsockname()[1])
        team = members(settings, arguments, port)
        return asyncio.run(Supervisor(team, grace_seconds=settings.server.shutdown_grace_seconds).run())


class Supervisor:
    """Keeps the members running."""

    def __init__(self, team: Sequence[Member], *, grace_seconds: float) -> None:
        self._team = team
        self._grace_seconds = grace_seconds
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._ready: set[str] = set()
        self._stopping = asyncio.Event()
        self._code = ExitCode.DONE

    async def run(self) -> ExitCode:
        """Until a signal, or until a member says that its settings are wrong."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)
        keepers = [asyncio.create_task(self._keep(member), name=member.name) for member in self._team]
        killer = asyncio.create_task(self._kill_late())
        await asyncio.gather(*keepers)
        killer.cancel()
        log.info("supervisor.stopped")
        return self._code

    async def _keep(self, member: Member) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._live(member)
            if self._stopping.is_set():
                return
            if code == ExitCode.SETTINGS and member.name not in self._ready:
                # It would say the same again.
                self._code = ExitCode.SETTINGS
                self._stop()
                return
            if time.monotonic() - started >= _STAYED_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            log.warning("supervisor.process_ended", process=member.name, code=code, again_in=pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _live(self, member: Member) -> int:
        """One life of a member. Returns its exit code."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "capstan", "serve", *member.arguments),
                    *("--lifeline", str(theirs.fileno())),
                    env={**os.environ, **member.environment},
                    pass_fds=(theirs.fileno(),),
                    # Ctrl-C in a terminal is for the supervisor alone.
                    start_new_session=True,
                    # A reload that comes while the process starts must not end it: it reads the settings anyway.
                    preexec_fn=_ignore_reloads,
                )
            self._running[member.name] = process
            if self._stopping.is_set():
                _signal(process, signal.SIGTERM)
            watching = asyncio.create_task(self._watch(member, ours))
            code = await process.wait()
            watching.cancel()
        del self._running[member.name]
        return code

    async def _watch(self, member: Member, lifeline: socket.socket) -> None:
        """Note that a member serves."""
        lifeline.setblocking(False)
        if await asyncio.get_running_loop().sock_recv(lifeline, 1) == _READY:
            self._ready.add(member.name)
            log.info("supervisor.process_ready", process=member.name, pid=self._running[member.name].pid)
            if len(self._ready) == len(self._team):
                log.info("supervisor.all_ready", processes=len(self._team))

    def _stop(self) -> None:
        self._stopping.set()
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: signal.Signals) -> None:
        for process in self._running.values():
            _signal(process, number)

    async def _kill_late(self) -> None:
        """End what does not end by itself."""
        await self._stopping.wait()
        await asyncio.sleep(self._grace_seconds + _KILL_SECONDS)
        log.error("supervisor.kills", processes=sorted(self._running))
        self._pass_on(signal.SIGKILL)


class Lifeline:
    """The worker's end: tells the supervisor that it serves, and notices when there is none any more."""

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        self._socket.setblocking(False)
        # Not for the processes that this one starts.
        self._socket.set_inheritable(False)

    async def ready(self) -> None:
        """This process serves."""
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self._socket, _READY)

    async def wait_cut(self) -> None:
        """Until the supervisor is gone, however it went."""
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_recv(self._socket, 1)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _ignore_reloads() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
