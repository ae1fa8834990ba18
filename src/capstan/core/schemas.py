"""JSON schemas of request bodies, complete: Litestar leaves out what msgspec knows of unions and nested constraints.

Called by the routes when they are made, for the API description. What is in it is what msgspec checks.
"""

from typing import Any

import msgspec

# A decimal number below 2^256, as a pattern: 78 digits at most, and the largest of them left out.
DECIMAL_WORD = "([0-9]{1,77}|1(0[0-9]{2}|1[0-4][0-9]|15[0-6])[0-9]{74})"
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
