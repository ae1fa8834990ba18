"""Writes the parts of the reference pages that repeat what the code knows: prices, networks, errors, plans, commands.

Such a part stands between `<!-- generated: name -->` and `<!-- end of generated -->`; the prose around it is written by
hand. `python -m tests.docs.generated` rewrites them all, and `test_generated.py` fails when one is not current. Nothing
here decides anything: it lays out what the code says.
"""

import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from typer.testing import CliRunner

# Imported for its effect: with the composition root, every error of the API is defined.
import capstan.app  # noqa: F401
from capstan.access.models import Scope
from capstan.bundler.methods import STANDARD
from capstan.catalogue.networks import Network, builtin_networks
from capstan.catalogue.units import builtin_prices
from capstan.cli.main import app
from capstan.core.errors import ApiError
from capstan.settings import Plan, load_settings
from capstan.sponsoring import PAYMASTER_METHODS
from tests.docs.markdown import ROOT, page_names
from tests.docs.metrics import metrics

_PART = re.compile(
    r"(?P<begin><!-- generated: (?P<name>[a-z ]+) -->\n).*?(?P<end><!-- end of generated -->)", re.DOTALL
)
_COMMAND = re.compile(r"  (?P<name>[a-z-]+) {2,}\S")
# On the path of the bundler alone; eth_chainId is there as well.
_BUNDLER = frozenset({*STANDARD, *PAYMASTER_METHODS} - {"eth_chainId"})

_SCOPES = {
    Scope.RPC_READ: "JSON-RPC methods that read; gas prices",
    Scope.RPC_WRITE: "JSON-RPC methods that submit a transaction",
    Scope.DATA_READ: "gas prices; token and NFT data",
    Scope.WALLETS_MANAGE: "smart wallets",
    Scope.WEBHOOKS_MANAGE: "webhooks when they are built",
    Scope.GAS_MANAGE: "gas prices; gas policies and sponsorship",
    Scope.BUNDLER_SEND: "the bundler when it is built",
}


def commands() -> str:
    """The help of every command, in the order of the command line."""
    return "\n".join(
        f"## `{' '.join(('capstan', *path))}`\n\n```text\n{_help(path)}\n```\n" for path in _command_paths(())
    )


def errors() -> str:
    """Every error of the API: status, code and when it is given."""
    kinds = sorted({kind.status: kind for kind in _subclasses(ApiError) if _has_own_code(kind)}.items())
    rows = [(str(status), f"`{kind.code}`", _first_sentence(kind)) for status, kind in kinds]
    return _table(("Status", "`code`", "When"), rows)


def scopes() -> str:
    """Every scope."""
    return _table(("Scope", "Opens"), [(f"`{scope}`", _SCOPES[scope]) for scope in Scope])


def plans() -> str:
    """The limits of every plan as they are shipped."""
    # An empty file in place of one that may lie in the working directory.
    found = load_settings(Path(os.devnull), {}).plans
    rows = []
    for field in msgspec.structs.fields(Plan):
        numbers = [getattr(getattr(found, plan), field.name) for plan in ("free", "growth", "enterprise")]
        rows.append((f"`{field.name}`", *(f"{number:,}" for number in numbers)))
    return _table(("Limit", "Free", "Growth", "Enterprise"), rows)


def units() -> str:
    """What the calls of today cost, in one table for each kind of call."""
    prices = builtin_prices()
    bundler = [name for name in prices.methods if name in _BUNDLER]
    methods = [name for name in prices.methods if name not in _BUNDLER]
    namespaces = ", ".join(f"`{name}*` {cost}" for name, cost in prices.prefixes.items())
    kinds = (
        ("EVM method", [name for name in methods if "." not in name and "_" in name]),
        ("Bundler method", bundler),
        ("Solana method", [name for name in methods if "." not in name and "_" not in name]),
        ("REST call", [name for name in methods if name.startswith("rest.")]),
        ("WebSocket", [name for name in methods if name.startswith("ws.")]),
    )
    tables = [_table(("Units", title), _by_cost(names)) for title, names in kinds]
    rest = f"Methods that are not listed: {namespaces}, any other {prices.default}.\n"
    return "\n".join([*tables, rest])


def archive_methods() -> str:
    """The methods that cost more at old blocks."""
    listed = ", ".join(f"`{name}`" for name in sorted(builtin_prices().archive_methods))
    return textwrap.fill(f"{listed}.", 118, break_long_words=False) + "\n"


def networks() -> str:
    """Every built-in network."""
    columns = ("Network", "Chain id", "Kind", "Coin", "Block time", "Base fee (EIP-1559)", "Test key, chain alone")
    return _table(columns, [_network_row(network) for network in builtin_networks()])


def all_metrics() -> str:
    """Every metric, by name."""
    rows = [(f"`{each.name}`", each.kind, each.text) for each in metrics()]
    return _table(("Metric", "Kind", "What it says"), rows)


PARTS: dict[str, Callable[[], str]] = {
    "archive methods": archive_methods,
    "commands": commands,
    "errors": errors,
    "metrics": all_metrics,
    "networks": networks,
    "plans": plans,
    "scopes": scopes,
    "units": units,
}


def part_names(text: str) -> list[str]:
    """The generated parts of a page."""
    return [match["name"] for match in _PART.finditer(text)]


def regenerated(text: str) -> str:
    """The page with every generated part as it should be."""
    return _PART.sub(lambda match: f"{match['begin']}\n{PARTS[match['name']]()}\n{match['end']}", text)


def main() -> int:
    """Rewrite the pages."""
    for name in page_names():
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        fresh = regenerated(text)
        if fresh != text:
            path.write_text(fresh, encoding="utf-8")
            sys.stdout.write(f"{name}: rewritten\n")
    return 0


def _command_paths(group: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    _, _, listed = _help(group).partition("\nCommands:\n")
    if group:
        yield group
    for line in listed.splitlines():
        if match := _COMMAND.match(line):
            yield from _command_paths((*group, match["name"]))


def _help(path: Sequence[str]) -> str:
    result = CliRunner().invoke(app, [*path, "--help"], prog_name="capstan", env={"COLUMNS": "80", "TERM": "dumb"})
    if result.exit_code != 0:
        raise RuntimeError(f"capstan {' '.join(path)} --help failed: {result.output}")
    return result.output.strip()


def _subclasses(kind: type[ApiError]) -> Iterator[type[ApiError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def _has_own_code(kind: type[ApiError]) -> bool:
    """Whether this is an error of the table and not a special case of one."""
    return kind.__base__ is ApiError and kind.__module__.startswith("capstan.")


def _first_sentence(kind: type[ApiError]) -> str:
    return (kind.__doc__ or "").strip().split("\n")[0].split(". ")[0].rstrip(".")


def _by_cost(names: Sequence[str]) -> list[tuple[str, str]]:
    prices = builtin_prices().methods
    return [
        (str(cost), ", ".join(f"`{name}`" for name in sorted(names) if prices[name] == cost))
        for cost in sorted({prices[name] for name in names})
    ]


def _network_row(network: Network) -> tuple[str, ...]:
    default = "in development" if network.default_in_development else "default" if network.default_testnet else ""
    seconds = f"{network.block_time_ms / 1000:g} s"
    fee = "yes" if network.eip1559 else "no"
    return f"`{network.name}`", str(network.chain_id), network.kind, network.native_symbol, seconds, fee, default


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
