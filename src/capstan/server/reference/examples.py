"""Example values and the ready curl command of an operation.

`operations.py` calls it. An example that the document gives always wins; otherwise one is made from the type, so that a
reader can paste the command and change what differs. Every part of the command is quoted for the shell; the API key is
a variable, never a value.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from capstan.server.reference.schemas import Schemas, reference_of

KEY_VARIABLE = "API_KEY"
ADDRESS_VARIABLE = "API_URL"

_ADDRESS = "0xd8dA6BF26964aF9D7eEd9e03E53415D37aA96045"
_BY_NAME: Mapping[str, str] = {
    "chain": "ethereum",
    "network": "sepolia",
    "address": _ADDRESS,
    "owner": _ADDRESS,
    "contract": "0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB48",
    "token_id": "1",
    "url": "https://example.com/hook",
}
_BY_FORMAT: Mapping[str, str] = {
    "date-time": "2026-01-31T12:00:00Z",
    "date": "2026-01-31",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "email": "you@example.com",
}
_DEEPEST = 8
_ONE_LINE = 96


def given(node: Mapping[str, Any]) -> list[Any]:
    """The examples that a parameter, a media type or a schema states itself."""
    if "example" in node:
        return [node["example"]]
    examples = node.get("examples")
    if isinstance(examples, Mapping):
        return [item["value"] for item in examples.values() if isinstance(item, Mapping) and "value" in item]
    return list(examples) if isinstance(examples, list | tuple) else []


def example_value(
    schemas: Schemas, schema: Any, *, name: str = "", whole: bool = False, trail: tuple[str, ...] = ()
) -> Any:
    """A value of that schema: with `whole` every field, otherwise the required ones and those with an example."""
    resolved = schemas.resolve(schema)
    stated = given(resolved)
    if stated:
        return stated[0]
    if resolved.get("default") is not None:
        return resolved["default"]
    pointer = reference_of(schema)
    if (pointer and pointer in trail) or len(trail) >= _DEEPEST:
        return None
    inner = (*trail, pointer or f"#{len(trail)}")
    for _, shape in schemas.variants(schema):
        if shape.get("type") != "null":
            return _plain_value(schemas, shape, name=name, whole=whole, trail=inner)
    return None


def _plain_value(schemas: Schemas, shape: Mapping[str, Any], *, name: str, whole: bool, trail: tuple[str, ...]) -> Any:
    if stated := given(shape):
        return stated[0]
    if "const" in shape:
        return shape["const"]
    if shape.get("enum"):
        return shape["enum"][0]
    kind = schemas.kind(shape).split(" ")[0]
    if kind == "array":
        item = example_value(schemas, shape.get("items", {}), name=name.rstrip("s"), whole=whole, trail=trail)
        return [] if item is None else [item]
    if kind in ("object", "map"):
        return _object_value(schemas, shape, whole=whole, trail=trail)
    if kind in ("integer", "number"):
        least = shape.get("minimum", 1)
        return int(least) if float(least).is_integer() else least
    if kind == "boolean":
        return True
    if kind == "string":
        return _BY_FORMAT.get(str(shape.get("format"))) or _BY_NAME.get(name) or "string"
    return {}


def _object_value(schemas: Schemas, shape: Mapping[str, Any], *, whole: bool, trail: tuple[str, ...]) -> dict[str, Any]:
    value = {}
    for name, schema in shape.get("properties", {}).items():
        if whole or name in shape.get("required", ()) or given(schemas.resolve(schema)):
            value[name] = example_value(schemas, schema, name=name, whole=whole, trail=trail)
    return value


def body_text(value: Any) -> str:
    """JSON as a person would write it: on one line while that is short."""
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= _ONE_LINE else json.dumps(value, ensure_ascii=False, indent=2)


def filled_path(path: str, values: Mapping[str, str]) -> str:
    """A path template with its parameters put in."""
    for name, value in values.items():
        path = path.replace("{" + name + "}", quote(value, safe=""))
    return path


def curl(
    method: str,
    address: str,
    *,
    query: Sequence[tuple[str, str]] = (),
    key_header: str | None = None,
    headers: Sequence[tuple[str, str]] = (),
    body: str | None = None,
    media_type: str = "application/json",
) -> str:
    """The command line that makes the call. An address without a host gets one from a shell variable."""
    url = shlex.quote(f"{address}?{urlencode(query)}" if query else address)
    if not address.startswith(("http://", "https://")):
        url = f'"${ADDRESS_VARIABLE}"{url}'
    chosen = "" if method == "GET" or (method == "POST" and body is not None) else f"-X {method} "
    parts = [f"curl -s {chosen}{url}"]
    if key_header is not None:
        parts.append(f'-H "{key_header}${KEY_VARIABLE}"')
    parts += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in headers]
    if body is not None:
        parts.append(f"-H {shlex.quote(f'Content-Type: {media_type}')}")
        parts.append(f"--data {shlex.quote(body)}")
    return " \\\n  ".join(parts)
