"""Runs the JavaScript clients of `tests/clients` with the real libraries, as their users do.

`tests/conftest.py` makes the fixture `javascript` known to every test. A script gets JSON on its standard input and
writes a report of its steps, which the tests then compare with what the node says. Node comes from the Python
environment, the libraries from `tests/clients/package-lock.json`.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.clients.install import SOURCE, ensure_clients
from tests.support.service import clean_environment

_SECONDS = 90.0


class Report:
    """What a script reported of its steps."""

    def __init__(self, steps: Mapping[str, Any]) -> None:
        self._steps = steps

    def __getitem__(self, name: str) -> Any:
        """The value of a step, which must not have failed."""
        found = self._steps[name]
        assert "error" not in found, f"{name}: {json.dumps(found['error'], indent=1)}"
        return found["value"]

    def number(self, name: str) -> int:
        """The value of a step as a whole number."""
        return int(self[name])


RunScript = Callable[[str, Mapping[str, Any]], Report]


@pytest.fixture(scope="session")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> RunScript:
    """Runs a script of `tests/clients` with this input: `javascript("viem.mjs", {…})`."""
    project = ensure_clients(print)
    # Imports are looked for beside the script.
    directory = tmp_path_factory.mktemp("clients")
    (directory / "node_modules").symlink_to(project.directory / "node_modules")
    for script in SOURCE.glob("*.mjs"):
        shutil.copyfile(script, directory / script.name)

    def run(script: str, values: Mapping[str, Any]) -> Report:
        done = subprocess.run(
            [project.node, directory / script],
            input=json.dumps(values),
            env=clean_environment(),
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{script} failed:\n{done.stderr[-3000:]}"
        return Report(json.loads(done.stdout))

    return run
