"""Installs the JavaScript clients of the tests, as `package.json` beside this file names them.

Run by `make setup-test` as `python -m tests.clients.install`, and by the fixture `javascript` when they are missing.
They go into a directory below the Python environment, with the Node of the development chain, and nowhere else.
"""

import sys
from pathlib import Path

from capstan.devnet.errors import DevnetError
from capstan.devnet.install import NodeProject, Report, ensure_node_project

SOURCE = Path(__file__).resolve().parent


def ensure_clients(report: Report) -> NodeProject:
    """The installed clients; installs them first when they are missing."""
    return ensure_node_project(report, source=SOURCE, name="clients", what="the JavaScript clients of the tests")


def main() -> int:
    """Install and say where."""

    def report(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    try:
        project = ensure_clients(report)
    except DevnetError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    report(f"the JavaScript clients of the tests are installed in {project.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
