"""A program that has Capstan loaded and runs modules in copies of itself, as `python -m module arguments` would.

Started by `tests/support/forks.py`, once for a test session: most of the time of a short command, and of a service's
start, is the loading of modules, which are the same every time. A copy has the standard streams, the environment, the
working directory and the arguments that it was asked to have, and exits as any Python program does. Copies end with
this program, and this program ends with the tests. It must stay without threads: a fork would not copy them.
"""

import contextlib
import gc
import importlib
import os
import runpy
import selectors
import signal
import socket
import sys

import msgspec

from tests.support.children import die_with_parent

# What the commands load, now or when they run.
_PRELOADED = ("capstan.cli.main", "capstan.app", "uvloop", "eth_account", "aiosqlite", "asyncpg")
_LARGEST_REQUEST = 1 << 20
_STREAMS = 3


class Request(msgspec.Struct):
    """A module to run."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    directory: str


class Report(msgspec.Struct):
    """A copy was started, or, with a code, has ended. The code is negative for a signal, as `subprocess` has it."""

    process_id: int
    code: int | None = None


class ForkServer:
    """Forks on request. `serve` returns in the copies only."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)
        # A child's end wakes the selector.
        self._woken, self._wakes = socket.socketpair()
        self._woken.setblocking(False)
        self._wakes.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)

    def serve(self) -> Request:
        """Serve until the tests are gone; then this process exits. In a copy, returns what it is to run."""
        while True:
            ready = [key.fileobj for key, _ in self._selector.select()]
            if self._woken in ready:
                self._reap()
            if self._connection in ready:
                body, streams, _, _ = socket.recv_fds(self._connection, _LARGEST_REQUEST, _STREAMS)
                if not body:
                    sys.exit(0)
                request = msgspec.json.decode(body, type=Request)
                child = os.fork()
                if child == 0:
                    self._become(request, streams)
                    return request
                for stream in streams:
                    os.close(stream)
                self._tell(Report(child))

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while True:
                child, status = os.waitpid(-1, os.WNOHANG)
                if child == 0:
                    return
                self._tell(Report(child, os.waitstatus_to_exitcode(status)))

    def _tell(self, report: Report) -> None:
        self._connection.send(msgspec.json.encode(report))

    def _become(self, request: Request, streams: list[int]) -> None:
        """Turn this copy into what a new process would be."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for unused in (self._connection, self._woken, self._wakes):
            unused.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        end_with_the_server = die_with_parent(signal.SIGKILL)
        if end_with_the_server is not None:
            end_with_the_server()
        os.chdir(request.directory)
        os.environ.clear()
        os.environ.update(request.environment)
        gc.enable()


def main() -> None:
    # The socket comes as standard input; a copy's standard input takes its number.
    connection = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    for module in _PRELOADED:
        importlib.import_module(module)
    gc.collect()
    # Copies share the memory of what is never looked at again.
    gc.freeze()
    gc.disable()
    request = ForkServer(connection).serve()
    sys.argv = [request.module, *request.arguments]
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
