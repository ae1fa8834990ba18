"""Blocks that are not run are looked at all the same: nothing fenced in a page goes unread."""

import json
import re
from pathlib import Path

import pytest

from capstan.settings import load_settings
from tests.docs.markdown import ROOT, Block, page_names, read_page
from tests.docs.session import is_make_only

LANGUAGES = {"go", "json", "python", "sh", "sql", "text", "toml", "typescript"}
DIRECTIVES = {"file", "not run", "varies"}
MOST_NOT_RUN = 3

BLOCKS = [block for name in page_names() for block in read_page(name).blocks]
_TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)
_MAKE = re.compile(r"(?:^|[ (])make((?: [a-z-]+)+)")


def of_language(*languages: str) -> list[object]:
    """The blocks in these languages, as parameters of a test."""
    return [pytest.param(block, id=block.place) for block in BLOCKS if block.language in languages]


def make_targets(text: str) -> list[str]:
    """The targets that make commands name."""
    code = "\n".join(line.partition("#")[0] for line in text.splitlines())
    return [target for match in _MAKE.finditer(code) for target in match[1].split()]


@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in BLOCKS])
def test_block_says_what_it_is(block: Block) -> None:
    """A block without a language, or with an unknown directive, would slip past the other tests."""
    assert block.language in LANGUAGES, f"{block.place}: give it one of the languages {sorted(LANGUAGES)}"
    unknown = {name for name in block.directives if not name.startswith(("generated", "end of"))} - DIRECTIVES
    assert not unknown, f"{block.place}: unknown directives {unknown}"


@pytest.mark.parametrize("block", of_language("toml"))
def test_settings_in_a_page_are_valid(block: Block, tmp_path: Path) -> None:
    """They load as a capstan.toml."""
    file = tmp_path / "capstan.toml"
    file.write_text(block.text, encoding="utf-8")
    load_settings(file, {})


@pytest.mark.parametrize("block", of_language("json"))
def test_json_in_a_page_is_json(block: Block) -> None:
    """It parses."""
    json.loads(block.text)


def test_make_commands_in_pages_exist() -> None:
    """In blocks and inside sentences."""
    targets = set(_TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    texts = [(block.place, block.text) for block in BLOCKS if block.language == "sh"]
    texts += [(f"{name}:{line}", code) for name in page_names() for line, code in read_page(name).inline_code]
    named = [(place, target) for place, text in texts for target in make_targets(text)]
    assert len(named) > 20, "the pages name many targets; if none is found, this test looks wrongly"
    missing = [(place, target) for place, target in named if target not in targets]
    assert not missing


def test_make_commands_are_found_among_comments_and_arguments() -> None:
    """The search itself."""
    assert make_targets("make check test ARGS=tests/unit # make nothing\n(make lock)") == ["check", "test", "lock"]
    assert make_targets("cmake build; makes sense") == []


def test_blocks_that_are_not_run_are_few_and_give_a_reason() -> None:
    """Each one is a command that nobody notices when it breaks."""
    left_out = [block for block in BLOCKS if "not run" in block.directives]
    assert len(left_out) <= MOST_NOT_RUN, [block.place for block in left_out]
    assert all(len(block.directives["not run"]) > 10 for block in left_out)


def test_mixed_blocks_are_run() -> None:
    """Only a block with nothing but make commands is looked up instead of run."""
    make = Block("p", 1, "sh", "make dev  # start\n# a comment\nmake test ARGS=tests/unit\n", {}, False)
    mixed = Block("p", 1, "sh", "make dev\nrm -r everything\n", {}, False)
    assert is_make_only(make)
    assert not is_make_only(mixed)
