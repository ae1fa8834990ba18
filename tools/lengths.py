"""Fails when a source file is longer than a reader can hold in mind. Called by `make check`."""

import subprocess
import sys
from pathlib import Path

LONGEST = 400


def main() -> int:
    """Print every file that is too long."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    too_long = 0
    for name in listed.stdout.split():
        path = Path(name)
        if not path.exists():
            continue
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > LONGEST:
            sys.stderr.write(f"{name}: {lines} lines, at most {LONGEST}; split it\n")
            too_long += 1
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
