"""Reads the pages: fenced blocks with their directives, headings with their anchors, links.

The tests of this folder call it. It knows as much of Markdown as the pages use, and refuses what it does not know, so
that nothing slips past the tests unread. A directive is an HTML comment directly above a block: `<!-- name: value -->`.
"""

import re
import textwrap
from functools import cache
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,})(?P<language>[^`\s]*)\s*")
_COMMENT = re.compile(r"<!-- (?P<name>[a-z ]+?)(?:: (?P<value>.*?))? -->")
_HEADING = re.compile(r"(?P<level>#{1,6}) (?P<title>.+)")
_INLINE_CODE = re.compile(r"`+([^`]+)`+")
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_NOT_IN_ANCHOR = re.compile(r"[^\w\- ]")


class Block(msgspec.Struct, frozen=True):
    """A fenced block."""

    page: str
    line: int
    language: str
    text: str
    directives: dict[str, str]
    answers: bool
    """Whether nothing but blank lines and comments stands between it and the block before."""

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.page}:{self.line}"


class Page(msgspec.Struct, frozen=True):
    """One Markdown file. `name` is its path from the root of the repository."""

    name: str
    text: str
    blocks: tuple[Block, ...]
    prose: str
    """The text outside of fenced blocks; as many lines as the whole."""

    @property
    def titles(self) -> list[str]:
        """The texts of its headings of the first level."""
        return [title for level, title in _headings(self.prose) if level == 1]

    @property
    def anchors(self) -> set[str]:
        """What a link to a place in this page may name, by the rules of GitHub."""
        found: dict[str, int] = {}
        anchors: set[str] = set()
        for _, title in _headings(self.prose):
            plain = _LINK.sub(r"\g<text>", _INLINE_CODE.sub(r"\1", title))
            anchor = _NOT_IN_ANCHOR.sub("", plain.lower()).strip().replace(" ", "-")
            count = found.get(anchor, 0)
            found[anchor] = count + 1
            anchors.add(f"{anchor}-{count}" if count else anchor)
        return anchors

    @property
    def links(self) -> list[tuple[int, str]]:
        """Line and target of every link outside of code."""
        return [
            (number, match["target"])
            for number, line in enumerate(self.prose.splitlines(), start=1)
            for match in _LINK.finditer(_INLINE_CODE.sub("", line))
        ]

    @property
    def inline_code(self) -> list[tuple[int, str]]:
        """Line and content of every piece of code inside a line."""
        return [
            (number, match[1])
            for number, line in enumerate(self.prose.splitlines(), start=1)
            for match in _INLINE_CODE.finditer(line)
        ]


def page_names() -> list[str]:
    """Every page that these tests look after."""
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    return [str(path.relative_to(ROOT)) for path in pages]


@cache
def read_page(name: str) -> Page:
    """One page of the repository."""
    return parse(name, (ROOT / name).read_text(encoding="utf-8"))


def parse(name: str, text: str) -> Page:
    """A page from its text. Raises `ValueError` for a block that does not end."""
    blocks: list[Block] = []
    prose: list[str] = []
    directives: dict[str, str] = {}
    answers = False
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        fence = _FENCE.fullmatch(line)
        if fence is None:
            prose.append(line)
            if comment := _COMMENT.fullmatch(line.strip()):
                directives[comment["name"]] = comment["value"] or ""
            elif line.strip():
                directives, answers = {}, False
            continue
        body: list[str] = []
        for _, inner in lines:
            body.append(inner)
            if inner.strip() == fence["ticks"]:
                break
        else:
            raise ValueError(f"{name}:{number}: the block does not end")
        content = textwrap.dedent("\n".join(body[:-1])) + "\n"
        blocks.append(Block(name, number, fence["language"], content, directives, answers))
        prose += [""] * (len(body) + 1)
        directives, answers = {}, True
    return Page(name, text, tuple(blocks), "\n".join(prose))


def _headings(prose: str) -> list[tuple[int, str]]:
    found = [_HEADING.fullmatch(line.rstrip()) for line in prose.splitlines()]
    return [(len(match["level"]), match["title"]) for match in found if match]
