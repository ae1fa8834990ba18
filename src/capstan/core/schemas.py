"""JSON schemas of request bodies, complete: Litestar leaves out what msgspec knows of unions and nested constraints.

Called by the routes when they are made, for the API description. What is in it is what msgspec checks.
"""

from typing import Any

import msgspec

_PREFIX = "#/$defs/"


def inlined_schema(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type without references, so that it can stand anywhere in a document."""
    schema = msgspec.json.schema(kind)
    definitions = schema.pop("$defs", {})
    found = _inline(schema, definitions)
    assert isinstance(found, dict)
    return found


def _inline(value: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_inline(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    rest = {name: _inline(item, definitions) for name, item in value.items() if name != "$ref"}
    reference = value.get("$ref")
    if not isinstance(reference, str):
        return rest
    return {**_inline(definitions[reference.removeprefix(_PREFIX)], definitions), **rest}
