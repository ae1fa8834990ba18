"""Reads the reference page back in tests: its elements, its tables, and its commands as a shell would run them."""

import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from capstan.server.reference import render_reference

_VOID = {"meta", "link", "input", "br", "wbr", "img", "hr"}


class Element:
    """An element of a parsed page."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag = tag
        self.attributes = attributes
        self.children: list[Element] = []
        self.texts: list[str] = []

    @property
    def text(self) -> str:
        """All text inside, with single spaces."""
        return " ".join("".join(self._pieces()).split())

    def _pieces(self) -> list[str]:
        return self.texts + [piece for child in self.children for piece in child._pieces()]

    def all(self, wanted: Callable[["Element"], bool] | str) -> list["Element"]:
        """Every element inside that fits, in the order of the page."""
        fits = wanted if callable(wanted) else lambda element: element.tag == wanted
        found = [self] if fits(self) else []
        return found + [element for child in self.children for element in child.all(fits)]

    def by_id(self, name: str) -> "Element":
        """The element with that id."""
        (found,) = self.all(lambda element: element.attributes.get("id") == name)
        return found


class Parser(HTMLParser):
    """Builds the tree and fails when the tags do not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("page", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        # Kept as a child of its own, so that texts and elements stay in order.
        piece = Element("#text", {})
        piece.texts.append(data)
        self._open[-1].children.append(piece)


def parsed(document: dict[str, Any]) -> Element:
    """The page for a document; fails when it is not well formed."""
    parser = Parser()
    parser.feed(render_reference(document))
    parser.close()
    return parser.root


def rows(element: Element) -> dict[str, list[str]]:
    """The tables inside an element: the first cell of each row, and the others."""
    found = {}
    for row in element.all("tr"):
        cells = [cell.text for cell in row.children if cell.tag in ("th", "td")]
        found[cells[0]] = cells[1:]
    return found


def command_of(page: Element, name: str) -> str:
    """The example command of an operation, to the letter."""
    (command,) = page.by_id(name).all(lambda element: element.attributes.get("class") == "command")
    return "".join(command._pieces())


def run_command(command: str, directory: Path, **variables: str) -> list[str]:
    """What curl is given when a shell runs the command."""
    program = directory / "curl"
    program.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    program.chmod(0o755)
    environment = {"PATH": f"{directory}:/usr/bin:/bin", **variables}
    done = subprocess.run(
        ["/bin/sh", "-c", command], env=environment, cwd=directory, capture_output=True, timeout=20, check=True
    )
    return done.stdout.decode().split("\0")[:-1]
