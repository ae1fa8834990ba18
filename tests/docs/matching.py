"""Compares what a page says a command prints with what it printed.

Two things may differ. In text, and inside JSON strings, `…` stands for anything within a line, and a line of `…` alone
for any lines. In JSON, the values of the keys named by the directive `varies` may be others of the same type. Widths of
columns do not matter: runs of spaces count as one. Text that begins like an HTTP answer is compared as one: the order
and the letter case of headers do not matter.
"""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

ANYTHING = "…"


def json_differences(expected: str, printed: str, varies: Collection[str] = ()) -> list[str]:
    """What is wrong with the printed JSON, in words; empty when it is as documented."""
    try:
        actual = json.loads(printed)
    except ValueError:
        return [f"this is not JSON: {printed!r}"]
    return _compare(json.loads(expected), actual, frozenset(varies), "$")


def text_differences(expected: str, printed: str) -> list[str]:
    """What is wrong with the printed text, in words; empty when it is as documented."""
    wanted, actual = _lines(expected), _lines(printed)
    if wanted and actual and wanted[0].startswith("HTTP/"):
        wanted, actual = _ordered_headers(wanted), _ordered_headers(actual)
    if _lines_match(wanted, actual):
        return []
    return ["expected:", *(f"  {line}" for line in wanted), "printed:", *(f"  {line}" for line in actual)]


def _compare(expected: Any, actual: Any, varies: frozenset[str], path: str) -> list[str]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        return _compare_objects(expected, actual, varies, path)
    if isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            return [f"{path}: {len(expected)} items are documented, {len(actual)} were printed"]
        pairs = enumerate(zip(expected, actual, strict=True))
        return [fault for index, pair in pairs for fault in _compare(*pair, varies, f"{path}[{index}]")]
    if isinstance(expected, str) and isinstance(actual, str) and _fits(expected, actual):
        return []
    if type(expected) is type(actual) and expected == actual:
        return []
    return [f"{path}: {expected!r} is documented, {actual!r} was printed"]


def _compare_objects(expected: dict[str, Any], actual: dict[str, Any], varies: frozenset[str], path: str) -> list[str]:
    faults = [f"{path}.{key} is documented but was not printed" for key in expected.keys() - actual.keys()]
    faults += [f"{path}.{key} was printed but is not documented" for key in actual.keys() - expected.keys()]
    for key in expected.keys() & actual.keys():
        if key not in varies:
            faults += _compare(expected[key], actual[key], varies, f"{path}.{key}")
        elif type(expected[key]) is not type(actual[key]):
            faults.append(f"{path}.{key}: {expected[key]!r} is documented, {actual[key]!r} is of another type")
    return sorted(faults)


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def _ordered_headers(lines: list[str]) -> list[str]:
    """An HTTP answer with its headers in lower case and in the order of their names."""
    status, *rest = lines
    end = rest.index("") if "" in rest else len(rest)
    headers = [(name.lower(), value) for name, _, value in (line.partition(":") for line in rest[:end])]
    return [status, *(f"{name}:{value}" for name, value in sorted(headers)), *rest[end:]]


def _lines_match(wanted: Sequence[str], actual: Sequence[str]) -> bool:
    if not wanted:
        return not actual
    if wanted[0] == ANYTHING:
        return any(_lines_match(wanted[1:], actual[start:]) for start in range(len(actual) + 1))
    return bool(actual) and _fits(wanted[0], actual[0]) and _lines_match(wanted[1:], actual[1:])


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split(ANYTHING)), text) is not None
