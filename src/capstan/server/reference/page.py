"""Renders the reference page and gives out its two static files.

The package's `__init__` exports both functions. All text of the document is escaped: the template engine does it for
values, and `prose` does it before it adds the few tags that descriptions may use. There is no inline style or script,
because the page is served under a Content-Security-Policy that forbids both.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from capstan.server.reference.examples import ADDRESS_VARIABLE, KEY_VARIABLE
from capstan.server.reference.operations import read_document

_SERVER = Path(__file__).parent.parent
_TYPES = {"reference.css": "text/css; charset=utf-8", "reference.js": "text/javascript; charset=utf-8"}


def render_reference(document: Mapping[str, Any]) -> str:
    """The whole page for an OpenAPI 3.1 document."""
    template = _environment().get_template("reference.html")
    return template.render(
        reference=read_document(document), key_variable=KEY_VARIABLE, address_variable=ADDRESS_VARIABLE
    )


def static_file(name: str) -> tuple[bytes, str] | None:
    """The content and content type of a file of the page, or nothing for any other name."""
    content_type = _TYPES.get(name)
    return None if content_type is None else (_read(name), content_type)


@functools.cache
def _read(name: str) -> bytes:
    """Only ever called with the names above, so that callers cannot fill the cache."""
    return (_SERVER / "static" / name).read_bytes()


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_SERVER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = prose
    environment.filters["inline"] = inline
    environment.filters["path"] = path
    environment.filters["dotted"] = dotted
    return environment


def prose(text: str) -> Markup:
    """Paragraphs, `-` lists and `code` of a description; everything else is plain text."""
    blocks = [_block(block.strip()) for block in re.split(r"\n\s*\n", text) if block.strip()]
    return Markup("\n").join(blocks)


def _block(text: str) -> Markup:
    lines = text.splitlines()
    if all(line.lstrip().startswith(("- ", "* ")) for line in lines):
        items = (Markup("<li>{}</li>").format(inline(line.lstrip()[2:])) for line in lines)
        return Markup("<ul>{}</ul>").format(Markup("").join(items))
    return Markup("<p>{}</p>").format(inline(text))


def inline(text: str) -> Markup:
    """Text with `code` between backticks."""
    parts = re.split(r"`([^`]+)`", text)
    marked = (Markup("<code>{}</code>").format(part) if odd % 2 else escape(part) for odd, part in enumerate(parts))
    return Markup("").join(marked)


def path(text: str) -> Markup:
    """A path template with its parameters marked and with places to break the line."""
    parts = re.split(r"(\{[^{}]*\}|/)", text)
    return Markup("").join(_path_part(part) for part in parts)


def dotted(text: str) -> Markup:
    """The name of a field with places to break the line."""
    return Markup(".<wbr>").join(text.split("."))


def _path_part(part: str) -> Markup:
    if part == "/":
        return Markup("/<wbr>")
    if part.startswith("{"):
        return Markup('<span class="slot">{}</span>').format(part)
    return escape(part)
