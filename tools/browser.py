"""Gives the tests a browser without changing the machine: prints the path of one that works.

Run by `make test` with the Python of the virtual environment; the test fixtures read what it left. It fetches Debian's
chromium, the libraries it needs and two font families with apt, with state, cache and packages all in a directory of
this virtual environment, and unpacks them there. It never installs into the system, never runs apt's hooks and never
needs root. Without apt it falls back to a browser on PATH. Only the standard library is used.
"""

import argparse
import contextlib
import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

HOME = Path(sys.prefix) / "share" / "capstan" / "browser"
VARIABLE = "TEST_BROWSER"
ON_PATH = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")

# Given to every start of the browser, here and in the tests: no screen, no network of its own, no sandbox helper
# (which would need a setuid root binary).
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

_WANTED = ("chromium", "fonts-dejavu-core", "fonts-liberation")
# The loader and the C library must be the machine's own. GTK is loaded only to draw windows.
_LEFT_OUT = re.compile(r"^(libc6|libc-bin|libcrypt1|libgtk-3-.*)$")
_LIBRARY = re.compile(r"^(lib.+|zlib1g|chromium-common)$")
_UNUSED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/icons", "usr/share/lintian", "usr/bin")

_UPDATE_SECONDS = 180
_QUERY_SECONDS = 60
_DOWNLOAD_SECONDS = 1200
_UNPACK_SECONDS = 120
_START_SECONDS = 60
_LOCK_SECONDS = 1800

# The page can answer only when it was parsed, its script ran and a font drew the text.
_PAGE = """<!doctype html><title>check</title><p><span id="text">Capstan</span></p><script>
const width = document.getElementById("text").getBoundingClientRect().width;
document.body.append("answer " + 6 * 7 + (width > 20 ? " drawn" : " not drawn"));
</script>
"""
_ANSWER = "answer 42 drawn"


class NotPossible(Exception):
    """A way to get a browser that does not work here; the text says why, in one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the path of a working browser, or tells in one line what to install."""
    parser = argparse.ArgumentParser(description="Make sure that the tests have a browser, and print its path.")
    parser.add_argument("--again", action="store_true", help="fetch it anew even when it is there already")
    options = parser.parse_args(arguments)
    try:
        path = ensure(again=options.again)
    except NotPossible as problem:
        say(f"no browser for the tests: {problem}")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


def ensure(*, again: bool = False) -> Path:
    """A browser that loads a page: the one the user names, else the private one, else one on PATH."""
    named = os.environ.get(VARIABLE)
    if named:
        try:
            check(Path(named))
        except NotPossible as problem:
            raise NotPossible(f"{VARIABLE} names {named}, which does not work: {problem}") from problem
        return Path(named)
    known = None if again else ready()
    if known is not None:
        return known
    HOME.mkdir(parents=True, exist_ok=True)
    with only_one(HOME / "lock"):
        known = None if again else ready()
        return known if known is not None else remember(obtain())


def ready() -> Path | None:
    """The browser that an earlier run checked, if it is still there. Takes no time."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    try:
        path = Path((HOME / "current").read_text(encoding="utf-8").strip())
    except OSError:
        return None
    return path if path.is_absolute() and os.access(path, os.X_OK) else None


def obtain() -> Path:
    """Fetches the private browser, or finds one on PATH when that is not possible."""
    try:
        return fetch()
    except NotPossible as problem:
        say(f"the private browser could not be made ({problem}); looking on PATH")
        reason = problem
    for name in ON_PATH:
        found = shutil.which(name)
        if found is None:
            continue
        try:
            check(Path(found))
        except NotPossible as problem:
            say(f"{found} does not work: {problem}")
        else:
            return Path(found)
    raise NotPossible(f"{reason}; install chromium or google-chrome, or set {VARIABLE} to the path of one")


def remember(path: Path) -> Path:
    """Writes down the browser that works, in one step, and removes what earlier runs fetched."""
    written = HOME / "current.new"
    written.write_text(f"{path}\n", encoding="utf-8")
    written.replace(HOME / "current")
    for directory in (*HOME.glob("chromium-*"), *HOME.glob("apt-*")):
        if directory not in path.parents:
            shutil.rmtree(directory, ignore_errors=True)
    return path


def fetch() -> Path:
    """Downloads and unpacks chromium into a new directory of its own, and checks that it loads a page."""
    for tool in ("apt-get", "apt-cache", "apt-config", "dpkg", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise NotPossible(f"{tool} is not on this machine")
    started = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="chromium-", dir=HOME))
    try:
        with tempfile.TemporaryDirectory(prefix="apt-", dir=HOME) as scratch:
            apt = PrivateApt(Path(scratch))
            say("reading the package lists into a private directory")
            apt.update()
            packages = closure(apt)
            size = sum(int(record["Size"]) for record in apt.show(packages).values())
            say(f"downloading {len(packages)} packages, {size / 1e6:.0f} MB")
            archives = apt.download(packages)
            say("unpacking")
            unpack(archives, root)
        launcher = write_launcher(root)
        say("loading a page")
        check(launcher)
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise
    used = sum(file.lstat().st_size for file in root.rglob("*") if file.is_file() and not file.is_symlink())
    say(f"the browser works: {used / 1e6:.0f} MB on disk, {time.monotonic() - started:.0f} seconds")
    return launcher


class PrivateApt:
    """apt with the machine's sources and keyrings, but state, cache and configuration of its own."""

    def __init__(self, scratch: Path) -> None:
        self.archives = scratch / "archives"
        self.trouble = ""
        self._records: dict[str, dict[str, str]] = {}
        for directory in ("lists/partial", "cache/archives/partial", "archives"):
            (scratch / directory).mkdir(parents=True)
        (scratch / "status").touch()
        configuration = scratch / "apt.conf"
        configuration.write_text(apt_configuration(scratch), encoding="utf-8")
        self._environment = {**os.environ, "APT_CONFIG": str(configuration), "LC_ALL": "C"}

    def update(self) -> None:
        """Reads the package lists. A source that does not answer is no fault while the others have what is needed."""
        result = run(["apt-get", "-q", "update"], _UPDATE_SECONDS, environment=self._environment)
        self.trouble = f" ({last_line(result.stderr)})" if result.stderr.strip() else ""

    def show(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """The records of the packages which the sources have, by name."""
        unknown = [name for name in names if name not in self._records]
        if unknown:
            command = ["apt-cache", "show", "--no-all-versions", *unknown]
            self._records.update(records(run(command, _QUERY_SECONDS, environment=self._environment).stdout))
        return {name: self._records[name] for name in names if name in self._records}

    def download(self, names: Sequence[str]) -> list[Path]:
        """Downloads the packages; apt checks each against the signed lists."""
        wanted = [f"{name}={record['Version']}" for name, record in self.show(names).items()]
        command = ["apt-get", "-q", "download", *wanted]
        result = run(command, _DOWNLOAD_SECONDS, environment=self._environment, directory=self.archives, show=True)
        archives = sorted(self.archives.glob("*.deb"))
        if result.returncode != 0 or len(archives) != len(wanted):
            raise NotPossible(f"apt downloaded {len(archives)} of {len(wanted)} packages: {last_line(result.stderr)}")
        return archives


def apt_configuration(scratch: Path) -> str:
    """A whole configuration for apt: of the machine's own only what says how to reach the network.

    Taking no more keeps out the hooks, some of which empty the machine's cache after each update.
    """
    dump = run(["apt-config", "dump", "--format", '%F "%v";%n'], _QUERY_SECONDS).stdout
    network = re.compile(r'^Acquire::(http|https|socks|ForceIPv|Check-)[^"]* "[^"]*";$')
    architecture = run(["dpkg", "--print-architecture"], _QUERY_SECONDS).stdout.strip()
    settings = {
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": "/dev/null",
        "Dir::State": f"{scratch}/",
        "Dir::State::lists": f"{scratch}/lists",
        "Dir::State::status": f"{scratch}/status",
        "Dir::Cache": f"{scratch}/cache",
        "Dir::Log": f"{scratch}/log",
        "Debug::NoLocking": "true",
        "APT::Architecture": architecture,
        "APT::Architectures::": architecture,
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::http::Timeout": "30",
        "Acquire::https::Timeout": "30",
        "Acquire::Retries": "2",
    }
    lines = [line for line in dump.splitlines() if network.match(line)]
    return "\n".join([*lines, *(f'{name} "{value}";' for name, value in settings.items()), ""])


def records(text: str) -> dict[str, dict[str, str]]:
    """The fields of package records; continuation lines are not needed and left out."""
    found: dict[str, dict[str, str]] = {}
    for paragraph in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if "Package" in fields:
            found.setdefault(fields["Package"], fields)
    return found


def closure(apt: PrivateApt) -> list[str]:
    """The wanted packages and every library they need, installed on this machine or not."""
    found: dict[str, dict[str, str]] = apt.show(_WANTED)
    if "chromium" not in found:
        raise NotPossible(f"the package sources of this machine gave no chromium{apt.trouble}")
    wave = list(found)
    while wave:
        needed = {name for package in wave for name in dependencies(found[package], apt)}
        wave = sorted(name for name in needed if name not in found)
        found |= apt.show(wave)
    return sorted(found)


def dependencies(record: Mapping[str, str], apt: PrivateApt) -> Iterator[str]:
    """The libraries a package depends on; of alternatives the first that the sources have."""
    clauses = ", ".join(record[field] for field in ("Pre-Depends", "Depends") if field in record)
    for clause in filter(None, clauses.split(", ")):
        names = [re.split(r"[ :(]", choice.strip(), maxsplit=1)[0] for choice in clause.split("|")]
        names = [name for name in names if _LIBRARY.match(name) and not _LEFT_OUT.match(name)]
        yield from list(apt.show(names))[:1]


def unpack(archives: Sequence[Path], root: Path) -> None:
    for archive in archives:
        result = run(["dpkg-deb", "-x", str(archive), str(root)], _UNPACK_SECONDS)
        if result.returncode != 0:
            raise NotPossible(f"{archive.name} could not be unpacked: {last_line(result.stderr)}")
    for unused in _UNUSED:
        shutil.rmtree(root / unused, ignore_errors=True)


def write_launcher(root: Path) -> Path:
    """Writes the script that starts the unpacked browser with its own libraries, fonts and home directory."""
    # Packages put libraries into usr/lib/aarch64-linux-gnu and the like, some of them one level deeper.
    places = [*root.glob("usr/lib/*-linux-gnu*"), *root.glob("lib/*-linux-gnu*")]
    inner = (place / name for place in places for name in ("", "nss", "pulseaudio"))
    libraries = ":".join(str(directory) for directory in inner if directory.is_dir())
    (root / "home").mkdir()
    fonts = root / "fonts.conf"
    fonts.write_text(font_configuration(root), encoding="utf-8")
    launcher = root / "launch"
    launcher.write_text(
        "#!/bin/sh\n"
        "# Written by tools/browser.py.\n"
        f"export LD_LIBRARY_PATH={shlex.quote(libraries)}\n"
        f"export FONTCONFIG_FILE={shlex.quote(str(fonts))}\n"
        f"export HOME={shlex.quote(str(root / 'home'))}\n"
        'export XDG_CONFIG_HOME="$HOME/.config" XDG_CACHE_HOME="$HOME/.cache" XDG_DATA_HOME="$HOME/.local/share"\n'
        "export DBUS_SESSION_BUS_ADDRESS=disabled: DBUS_SYSTEM_BUS_ADDRESS=disabled:\n"
        f'exec {shlex.quote(str(root / "usr/lib/chromium/chromium"))} "$@"\n',
        encoding="utf-8",
    )
    launcher.chmod(0o755)
    return launcher


def font_configuration(root: Path) -> str:
    """Only the two fetched families, so that pages look the same on every machine."""
    families = {"sans-serif": "Sans", "system-ui": "Sans", "serif": "Serif", "monospace": "Mono"}
    aliases = "".join(
        f"<alias><family>{name}</family><prefer><family>Liberation {font}</family></prefer></alias>"
        for name, font in families.items()
    )
    return (
        '<?xml version="1.0"?>\n<!DOCTYPE fontconfig SYSTEM "fonts.dtd">\n<fontconfig>'
        f"<dir>{root}/usr/share/fonts</dir><cachedir>{root}/font-cache</cachedir>{aliases}</fontconfig>\n"
    )


def check(path: Path) -> None:
    """Loads a page with the browser, in an empty profile, and reads what its script wrote."""
    if not os.access(path, os.X_OK) or path.is_dir():
        raise NotPossible(f"{path} is not a program")
    with tempfile.TemporaryDirectory(prefix="capstan-browser-", ignore_cleanup_errors=True) as scratch:
        page = Path(scratch) / "page.html"
        page.write_text(_PAGE, encoding="utf-8")
        profile = f"--user-data-dir={scratch}/profile"
        result = run([str(path), "--headless=new", *FLAGS, profile, "--dump-dom", page.as_uri()], _START_SECONDS)
    if _ANSWER not in result.stdout:
        reason = next((line for line in result.stderr.splitlines() if "shared libraries" in line), None)
        raise NotPossible(f"{path} did not load a page: {reason or last_line(result.stderr)}")


def run(
    command: Sequence[str],
    seconds: float,
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    show: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end or its time limit. With `show` its output is passed on as it comes."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr if show else subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
    except OSError as problem:
        raise NotPossible(f"{command[0]} could not be started: {problem}") from problem
    try:
        output, errors = process.communicate(timeout=seconds)
    except BaseException as problem:
        # apt and the browser have children that would outlive them and keep the pipes open: end the whole group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(problem, subprocess.TimeoutExpired):
            raise NotPossible(f"{command[0]} took longer than {seconds:.0f} seconds") from problem
        raise
    return subprocess.CompletedProcess(command, process.returncode, output or "", errors)


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Holds a file lock: a second run waits for the first instead of fetching everything twice."""
    deadline = time.monotonic() + _LOCK_SECONDS
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise NotPossible(f"another run has held {path} for {_LOCK_SECONDS} seconds") from None
                time.sleep(0.5)
        yield


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def say(text: str) -> None:
    sys.stderr.write(f"browser: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
