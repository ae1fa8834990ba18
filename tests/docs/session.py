"""Runs the blocks of one page in order, in one shell, as a reader would who types them in.

`test_snippets.py` calls it. The shell starts in an empty directory that looks like the root of the repository after
`make dev`: `.venv` is the environment of the tests and `.capstan-dev` the data directory of the running `capstan dev`.
The variables of one block are there in the next. Blocks run unchanged but for the addresses in `Substitutions`.

    sh       run by bash, which stops at the first command that fails
    python   run by the Python of the environment
    toml     written to the file that the directive `file` names, if it names one
    json     likewise; directly below a block that ran it is what the block must have printed
    text     directly below a block that ran it is what the block must have printed

Not run are blocks under the directive `not run`, and those that hold nothing but `make` commands: `test_blocks.py`
looks whether their targets exist.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tests.docs.markdown import Block, Page
from tests.docs.matching import json_differences, text_differences

_SECONDS = 120.0
_MAKE = re.compile(r"make(?: [a-z-]+)*(?: [A-Z]+=\S+)*(?: +#.*)?")
_CALLS_THE_API = re.compile(r"\bcurl\b")


class Substitutions(msgspec.Struct, frozen=True):
    """The addresses in the pages, and what takes their place here."""

    values: Mapping[str, str]

    def apply(self, text: str) -> str:
        """The text with every address replaced."""
        for written, real in self.values.items():
            text = text.replace(written, real)
        return text

    def undo(self, text: str) -> str:
        """What was printed, as the page would show it."""
        for written, real in self.values.items():
            text = text.replace(real, written)
        return text


def is_make_only(block: Block) -> bool:
    """Whether a block holds nothing but `make` commands and comments."""
    lines = [line.strip() for line in block.text.splitlines() if line.strip() and not line.startswith("#")]
    return block.language == "sh" and bool(lines) and all(_MAKE.fullmatch(line) for line in lines)


def is_run(block: Block) -> bool:
    """Whether the block is a step of the page's session."""
    if "not run" in block.directives or is_make_only(block):
        return False
    return block.language in ("sh", "python") or "file" in block.directives


def outputs_documented(page: Page) -> Iterator[tuple[Block, Block]]:
    """The blocks that run, each with the block below it that says what it prints."""
    for before, block in zip(page.blocks, page.blocks[1:], strict=False):
        if block.answers and block.language in ("json", "text") and is_run(before) and "file" not in before.directives:
            yield before, block


def calls_without_answer(page: Page) -> list[Block]:
    """The blocks that call the API and do not say what comes back."""
    answered = [before for before, _ in outputs_documented(page)]
    return [
        block
        for block in page.blocks
        if block.language == "sh" and is_run(block) and _CALLS_THE_API.search(block.text) and block not in answered
    ]


class Session:
    """One page, run in one directory."""

    def __init__(self, page: Page, directory: Path, data_directory: Path, substitutions: Substitutions) -> None:
        self._page = page
        self._home = directory / "home"
        self._steps = directory / "steps"
        self._substitutions = substitutions
        self._home.mkdir(parents=True)
        self._steps.mkdir()
        (self._home / ".venv").symlink_to(sys.prefix)
        (self._home / ".capstan-dev").symlink_to(data_directory)

    def run(self) -> list[str]:
        """Run everything. Returns what is wrong, in words; empty when the page is true."""
        for tool in ("bash", "curl"):
            if shutil.which(tool) is None:
                return [f"{tool} is not on this machine; the pages need it, so install it"]
        blocks = [block for block in self._page.blocks if is_run(block)]
        code = self._execute(self._script(blocks))
        if code != 0:
            position = int((self._steps / "current").read_text())
            failed = blocks[position]
            return [f"{failed.place} failed with code {code}:\n{failed.text}\nIt printed:\n{self._output(position)}"]
        faults = []
        for block, documented in outputs_documented(self._page):
            faults += self._judge(documented, self._output(blocks.index(block)))
        return faults

    def _script(self, blocks: Sequence[Block]) -> str:
        # Whatever a page leaves running in the background ends with its shell.
        parts = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT"]
        for position, block in enumerate(blocks):
            content = self._substitutions.apply(block.text)
            output = self._steps / f"{position}.out"
            parts.append(f"echo {position} > {self._steps / 'current'}")
            if "file" in block.directives:
                source = self._steps / f"{position}.file"
                source.write_text(content, encoding="utf-8")
                parts.append(f"cp {source} {block.directives['file']}")
            elif block.language == "python":
                source = self._steps / f"{position}.py"
                source.write_text(content, encoding="utf-8")
                parts.append(f".venv/bin/python {source} > {output} 2>&1")
            else:
                parts.append("{\n" + content + "} > " + f"{output} 2>&1")
        return "\n".join(parts) + "\n"

    def _execute(self, script: str) -> int | str:
        """Run the script in a process group of its own; the exit code, or words when it took too long."""
        path = self._steps / "script.sh"
        path.write_text(script, encoding="utf-8")
        process = subprocess.Popen(
            ["bash", str(path)],
            cwd=self._home,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            return f"'not finished after {_SECONDS:g} s'"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)

    def _environment(self) -> dict[str, str]:
        # A reader's terminal: no settings of Capstan, no proxy between curl and this machine, no .curlrc.
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG", "TMPDIR") if name in os.environ}
        return {**kept, "LC_ALL": "C.UTF-8", "HOME": str(self._home), "PYTHONUTF8": "1"}

    def _output(self, position: int) -> str:
        file = self._steps / f"{position}.out"
        return self._substitutions.undo(file.read_text(encoding="utf-8")) if file.exists() else ""

    def _judge(self, documented: Block, printed: str) -> list[str]:
        if documented.language == "json":
            varies = [key.strip() for key in documented.directives.get("varies", "").split(",")]
            faults = json_differences(documented.text, printed, varies)
        else:
            faults = text_differences(documented.text, printed)
        return [f"{documented.place}: {fault}" for fault in faults]
