"""Builds geth for the tests, with the Go that is on PATH, into this virtual environment.

Run by `make geth`, and not by `make test`: building takes about 190 seconds of processor time. The tests of the native
tracer use what it left, and are skipped without it. The version is pinned, Go checks the sources against its checksum
database, and nothing is left outside of the virtual environment. Only the standard library is used.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VERSION = "v1.16.7"
HOME = Path(sys.prefix) / "share" / "capstan" / f"geth-{VERSION}"
BINARY = HOME / "geth"
_PACKAGE = f"github.com/ethereum/go-ethereum/cmd/geth@{VERSION}"
_LONGEST_SECONDS = 1800


def build() -> str | None:
    """Build it unless it is there. Returns what stands in the way, or None."""
    if BINARY.exists():
        return None
    go = shutil.which("go")
    if go is None:
        return "there is no Go on PATH"
    HOME.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME) as scratch:
        variables = {
            **os.environ,
            "GOBIN": str(Path(scratch) / "bin"),
            "GOPATH": str(Path(scratch) / "path"),
            "GOCACHE": str(Path(scratch) / "cache"),
            # Otherwise what it fetched could not be removed.
            "GOFLAGS": "-modcacherw",
            "GOTOOLCHAIN": "local",
            "CGO_ENABLED": "0",
        }
        try:
            subprocess.run([go, "install", "-p", "2", _PACKAGE], env=variables, check=True, timeout=_LONGEST_SECONDS)
            Path(scratch, "bin", "geth").rename(BINARY)
        except (subprocess.SubprocessError, OSError) as error:
            return f"go install failed: {error}"
    return None


def main() -> int:
    """The program."""
    began = time.monotonic()
    problem = build()
    if problem is not None:
        sys.stderr.write(f"geth was not built, so the tests that need it are skipped: {problem}\n")
        return 1
    sys.stdout.write(f"{BINARY}, after {time.monotonic() - began:.0f} seconds\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
