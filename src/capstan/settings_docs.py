"""Writes `docs/reference/configuration.md` from `defaults.toml` and the settings' types.

Run `python -m capstan.settings_docs` after changing a setting; `--check` only tells whether the page is current, and a
test does the same. Nothing in a running service uses this module.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from capstan.catalogue.networks import builtin_networks, family_table
from capstan.settings.errors import dotted
from capstan.settings.kinds import describe, show
from capstan.settings.layers import KeyPath, annotation_at, defaults_text, section_fields, variable_name
from capstan.settings.model import RELOADABLE, NetworkSettings, Upstream
from capstan.settings.redaction import secret_rule

PAGE = Path("docs/reference/configuration.md")

_SECTION = re.compile(r"\[([a-z_.]+)\]")
_SETTING = re.compile(r"([a-z0-9_]+) = (.+)")

_INTRODUCTION = """\
# Configuration

<!-- Generated from src/capstan/defaults.toml by `python -m capstan.settings_docs`. Do not edit. -->

Capstan reads its settings from four places. A later one wins over an earlier one:

1. the defaults below, shipped with the package;
2. your file: the one named with `--config`, else the one named by `CAPSTAN_CONFIG`, else `capstan.toml` in the working
   directory if there is one;
3. environment variables: `CAPSTAN_`, the section and the key in capitals, two underscores between them;
4. the command line.

Sections merge key by key. A list or an inline table is one value and replaces the one below it whole. In an environment
variable, a list or a table is written as JSON or as a TOML value:
`CAPSTAN_SERVER__CORS_ORIGINS='["https://app.example.com"]'`.

An unknown setting, or a value that does not fit, stops the start with a message that names the source, the setting and
the reason.

**Reload.** Sections marked "reloaded" take effect without a restart when the process is told to reload. If the new
settings are wrong, the old ones stay in force. A change of any other setting is reported and waits for a restart.
"""

_NETWORKS = """\
## `networks`

Reloaded. {comment}

```toml
# A built-in network needs only its nodes: addresses, or tables where more is to be said.
[networks."ethereum/mainnet"]
upstreams = [
    "https://node-1.example.com/key",
    {{ url = "wss://node-2.example.com", tier = 1, headers = {{ authorization = "Bearer …" }} }},
]

# A network that is not built in needs chain_id, kind and family as well.
[networks."acme/mainnet"]
chain_id = 424242
kind = "mainnet"
family = "evm"
native_symbol = "ACME"
upstreams = ["http://10.0.0.5:8545"]
```

In an environment variable the slash of the name is an underscore:
`CAPSTAN_NETWORKS__ETHEREUM_MAINNET__UPSTREAMS='["https://node-1.example.com/key"]'`.

Keys of a network. The defaults are those of a network that is not built in; a built-in one has its own values from the
catalogue.
"""

_UPSTREAM = """\
Keys of an upstream. Each defaults to its value in `[upstreams]`; these have no value there:
"""

_CATALOGUE = """\
### Built-in networks

A test key that names only the chain gets the default test network; in development mode, `ethereum` then means
`ethereum/devnet`.
"""


class Entry(msgspec.Struct, frozen=True):
    """A setting or a section of `defaults.toml` with the comment above it."""

    path: KeyPath
    comment: str
    default: str | None
    """The value as written; `None` for a section."""


def read_entries(text: str) -> Iterator[Entry]:
    """The sections and settings of `defaults.toml` in order. Raises `ValueError` for a line it does not understand."""
    section: KeyPath = ()
    comment: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#"):
            comment.append(line.removeprefix("#").strip())
            continue
        if header := _SECTION.fullmatch(line):
            section = tuple(header[1].split("."))
            yield Entry(section, " ".join(comment), None)
        elif setting := _SETTING.fullmatch(line):
            yield Entry((*section, setting[1]), " ".join(comment), setting[2])
        elif line:
            raise ValueError(f"defaults.toml: line {number}: write one setting on one line")
        comment = []


def render() -> str:
    """The whole page."""
    entries = list(read_entries(defaults_text()))
    parts = [_INTRODUCTION, *_sections(entries)]
    comment = next(entry.comment for entry in entries if entry.path == ("networks",))
    parts.append(_NETWORKS.format(comment=comment))
    parts.append(_table(("Key", "Type", "Default", "Meaning"), _network_rows()))
    parts.append(_UPSTREAM)
    parts.append(_table(("Key", "Type", "Meaning"), _upstream_rows()))
    parts.append(_CATALOGUE)
    parts.append(_table(("Network", "Chain id", "Kind", "Coin", "Default test network"), _catalogue_rows()))
    return "\n".join(parts)


def _sections(entries: Sequence[Entry]) -> Iterator[str]:
    columns = ("Setting", "Type", "Default", "Environment variable", "Meaning")
    top = [entry for entry in entries if len(entry.path) == 1 and entry.default is not None]
    yield f"## Top level\n\n{_reload_note(top[0].path)}\n"
    yield _table(columns, (_setting_row(entry) for entry in top))
    for section in entries:
        if section.default is None and section.path != ("networks",):
            yield f"## `{dotted(section.path)}`\n\n{_reload_note(section.path)} {section.comment}\n"
            rows = [entry for entry in entries if entry.path[:-1] == section.path and entry.default is not None]
            yield _table(columns, (_setting_row(entry) for entry in rows))


def _reload_note(path: KeyPath) -> str:
    return "Reloaded." if path[0] in RELOADABLE else "Needs a restart."


def _setting_row(entry: Entry) -> tuple[str, ...]:
    annotation = annotation_at(entry.path)
    kind = _kind(annotation) + (" (secret)" if secret_rule(annotation) else "")
    return f"`{entry.path[-1]}`", kind, f"`{entry.default}`", f"`{variable_name(entry.path)}`", entry.comment


def _network_rows() -> Iterator[tuple[str, ...]]:
    for key, annotation in section_fields(NetworkSettings).items():
        yield f"`{key}`", _kind(annotation), _network_default(key), _description(annotation)


def _network_default(key: str) -> str:
    if annotation_at(("network_defaults", key)) is not None:
        return "as in `[network_defaults]`"
    if key == "upstreams":
        return "`[]`"
    if key == "quorum":
        return "`{}`"
    evm, solana = family_table("evm"), family_table("solana")
    if key not in evm:
        return "required"
    if evm[key] == solana[key]:
        return f"`{show(evm[key])}`"
    return f"`{show(evm[key])}` (EVM), `{show(solana[key])}` (Solana)"


def _upstream_rows() -> Iterator[tuple[str, ...]]:
    for key, annotation in section_fields(Upstream).items():
        if description := _description(annotation):
            yield f"`{key}`", _kind(annotation), description


def _catalogue_rows() -> Iterator[tuple[str, ...]]:
    for network in builtin_networks():
        mark = "yes" if network.default_testnet else "in development" if network.default_in_development else ""
        yield f"`{network.name}`", str(network.chain_id), network.kind, network.native_symbol, mark


def _kind(annotation: Any) -> str:
    return describe(annotation).removeprefix("an ").removeprefix("a ")


def _description(annotation: Any) -> str:
    info = inspect.type_info(annotation)
    extra = info.extra_json_schema if isinstance(info, inspect.Metadata) else None
    return str(extra["description"]) if extra and "description" in extra else ""


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or with `--check` compare it. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m capstan.settings_docs", description="Write the configuration page."
    )
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is not current")
    parser.add_argument("--output", type=Path, default=PAGE, help="the page to write")
    options = parser.parse_args(arguments)
    page = render()
    if options.check:
        current = options.output.read_text(encoding="utf-8") if options.output.exists() else ""
        if current == page:
            return 0
        sys.stderr.write(f"{options.output} is not current: run python -m capstan.settings_docs\n")
        return 1
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
