"""What kind of value a setting takes: how to describe it, and how to read it from text.

Used by `layers` for values that arrive as text (environment, command line), by `build` for error messages, and by the
documentation generator. Works on the types of `model`; knows nothing of single settings.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
_INTEGER = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
_LONGEST_SHOWN = 80


@cache
def kind_of(annotation: Any) -> inspect.Type:
    """The type behind an annotation, without its metadata."""
    info = inspect.type_info(annotation)
    return info.type if isinstance(info, inspect.Metadata) else info


def describe(annotation: Any) -> str:
    """The kind in words, for `must be …`: `an integer from 0 to 65535`."""
    return _describe(kind_of(annotation))


def parse_text(text: str, annotation: Any) -> object:
    """A value from text, by the kind of setting it is for. Raises `ValueError` with the reason.

    Lists and tables are read as JSON or as a TOML value. The range of the value is not checked here.
    """
    kind = kind_of(annotation)
    match kind:
        case inspect.StrType() | inspect.LiteralType():
            return text
        case inspect.BoolType():
            return _parse_bool(text)
        case inspect.IntType():
            if not _INTEGER.fullmatch(text.strip()):
                raise ValueError(f"must be {_describe(kind)}")
            return int(text)
        case inspect.FloatType():
            return _parse_float(text, _describe(kind))
        case _:
            return parse_structured(text, _describe(kind))


def parse_structured(text: str, expected: str) -> object:
    """A list or table from JSON, or from what may stand behind `key =` in TOML."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        table = {}
    if set(table) != {"value"}:
        raise ValueError(f"must be {expected}, written as JSON or as a TOML value")
    return table["value"]


def show(value: object) -> str:
    """A value for an error message, short."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except TypeError:
        text = str(value)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


def _parse_bool(text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("must be true or false")


def _parse_float(text: str, expected: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"must be {expected}") from None


def _describe(kind: inspect.Type) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "an integer" + _range(kind)
        case inspect.FloatType():
            return "a number" + _range(kind)
        case inspect.LiteralType(values=values):
            return _listed(values, "or")
        case inspect.StrType(min_length=least, max_length=most):
            return f"a text of {least or 0} to {most} characters" if most else _text(least)
        case inspect.VarTupleType(item_type=item):
            return f"a list of {_plural(item)}"
        case inspect.DictType(key_type=key, value_type=item):
            keys = f" under the keys {_listed(key.values, 'and')}" if isinstance(key, inspect.LiteralType) else ""
            return f"a table of {_plural(item)}{keys}"
        case _:
            return "a table"


def _plural(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata(extra={"plural": str(name)}):
            return name
        case inspect.Metadata(type=inner):
            return _plural(inner)
        case inspect.IntType():
            return "integers" + _range(kind)
        case inspect.LiteralType(values=values):
            return _listed(values, "and")
        case inspect.StructType():
            return "tables"
        case _:
            return "texts"


def _text(least: int | None) -> str:
    return "a text that is not empty" if least else "a text"


def _listed(values: Iterable[object], word: str) -> str:
    *most, last = (f'"{value}"' for value in values)
    return f"{', '.join(most)} {word} {last}" if most else last


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    unbounded = 2**53 - 1
    low, high = kind.ge, kind.le if kind.le != unbounded else None
    if kind.gt is not None:
        return f" above {_number(kind.gt)}" + (f", at most {_number(high)}" if high is not None else "")
    if low is not None and high is not None:
        return f" from {_number(low)} to {_number(high)}"
    return f" of at least {_number(low)}" if low is not None else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def struct_type(annotation: Any) -> type[msgspec.Struct] | None:
    """The struct behind an annotation, if it is one."""
    kind = kind_of(annotation)
    return kind.cls if isinstance(kind, inspect.StructType) else None
