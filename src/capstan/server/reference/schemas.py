"""Reads the schemas of an OpenAPI document: references, types, limits, and the flat list of fields of a body.

`operations.py` and `examples.py` use it. A body is shown as rows with whole names such as `tokens[].contract`: each row
makes sense on its own. References that lead back to themselves end where they repeat. Nothing here writes HTML.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

Schema = Mapping[str, Any]

# Deeper than any body of ours, and a bound for documents that are not.
_DEEPEST = 8
_BOUNDS = (
    ("minimum", "at least"),
    ("exclusiveMinimum", "more than"),
    ("maximum", "at most"),
    ("exclusiveMaximum", "less than"),
    ("multipleOf", "a multiple of"),
)
_COUNTS = (
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"),
    ("minProperties", "at least {} keys"),
    ("maxProperties", "at most {} keys"),
)


class Limit(msgspec.Struct, frozen=True):
    """One restriction: words, and the literal values they introduce."""

    text: str
    values: tuple[str, ...] = ()


class Field(msgspec.Struct, frozen=True):
    """One row of a table of fields."""

    name: str
    kind: str
    required: bool
    description: str
    default: str | None = None
    limits: tuple[Limit, ...] = ()
    deprecated: bool = False
    # The one of several shapes that has this field, when not all have it.
    variant: str | None = None
    # The field has the same shape as one of those it lies in; its own fields are not repeated.
    repeats: bool = False


class Schemas:
    """The schemas of one document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def resolve(self, node: Any) -> dict[str, Any]:
        """The node itself, or what its reference leads to; what stands beside a reference wins."""
        found: dict[str, Any] = {}
        seen: set[str] = set()
        while isinstance(node, Mapping):
            found = {**node, **found}
            pointer = found.pop("$ref", None)
            if not isinstance(pointer, str) or pointer in seen:
                break
            seen.add(pointer)
            node = self._at(pointer)
        return found

    def _at(self, pointer: str) -> Any:
        node: Any = self._document
        if not pointer.startswith("#/"):
            return None
        for part in pointer[2:].split("/"):
            if not isinstance(node, Mapping):
                return None
            node = node.get(part.replace("~1", "/").replace("~0", "~"))
        return node

    def variants(self, schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every plain shape a value may have, with the reference it came from or an empty text."""
        yield from self._variants(schema, ())

    def _variants(self, schema: Any, trail: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
        pointer = reference_of(schema)
        if pointer in trail:
            return
        resolved = self._merged(self.resolve(schema))
        inner = (*trail, pointer) if pointer else trail
        choices = [choice for word in ("oneOf", "anyOf") for choice in _list(resolved.get(word))]
        if choices:
            for choice in choices:
                yield from self._variants(choice, inner)
        elif isinstance(resolved.get("type"), list):
            for name in resolved["type"]:
                yield pointer, {"type": "null"} if name == "null" else {**resolved, "type": name}
        else:
            yield pointer, resolved

    def _merged(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema with its `allOf` parts folded in."""
        parts = [self.resolve(part) for part in _list(schema.get("allOf"))]
        if not parts:
            return schema
        whole: dict[str, Any] = {}
        for part in [*parts, {name: value for name, value in schema.items() if name != "allOf"}]:
            properties = {**whole.get("properties", {}), **part.get("properties", {})}
            required = [*whole.get("required", []), *part.get("required", [])]
            whole = {**whole, **part, "properties": properties, "required": required}
        return whole

    def kind(self, schema: Any, depth: int = 0) -> str:
        """The type in words, for instance `array of string` or `string or null`."""
        names = [self._plain_kind(variant, depth) for _, variant in self.variants(schema)]
        ordered = dict.fromkeys(
            [*(name for name in names if name != "null"), *(name for name in names if name == "null")]
        )
        return " or ".join(ordered) or "any"

    def _plain_kind(self, schema: Schema, depth: int) -> str:
        name = _type_name(schema)
        if name == "array":
            items = schema.get("items")
            inner = self.kind(items, depth + 1) if items and depth < _DEEPEST else "any"
            return f"array of ({inner})" if " or " in inner else f"array of {inner}"
        values = schema.get("additionalProperties")
        if name == "object" and not schema.get("properties") and isinstance(values, Mapping) and values:
            return f"map of {self.kind(values, depth + 1)}" if depth < _DEEPEST else "object"
        layout = schema.get("format")
        return f"{name} ({layout})" if layout else name

    def limits(self, schema: Any) -> tuple[Limit, ...]:
        """What restricts a value, over all its shapes, each once."""
        found: dict[Limit, None] = {}
        for _, variant in self.variants(schema):
            found.update(dict.fromkeys(_plain_limits(variant)))
            if _type_name(variant) == "array":
                for _, item in self.variants(variant.get("items", {})):
                    found.update((Limit(f"each {limit.text}", limit.values), None) for limit in _plain_limits(item))
        return tuple(found)

    def field(self, name: str, schema: Any, *, required: bool, **more: Any) -> Field:
        """The row of one named value."""
        resolved = self.resolve(schema)
        words = (resolved, *(shape for _, shape in self.variants(schema)))
        described = next((shape["description"] for shape in words if shape.get("description")), "")
        return Field(
            name=name,
            kind=self.kind(schema),
            required=required,
            description=str(more.pop("description", None) or described),
            default=json_text(resolved["default"]) if "default" in resolved else None,
            limits=self.limits(schema),
            deprecated=bool(more.pop("deprecated", False) or resolved.get("deprecated")),
            **more,
        )

    def fields(self, schema: Any) -> tuple[Field, ...]:
        """The rows of a body, outer fields before the inner ones."""
        return tuple(self._fields(schema, "", ())[0])

    def _fields(self, schema: Any, path: str, trail: tuple[str, ...]) -> tuple[list[Field], bool]:
        """The rows below a value, and whether some were left out because they repeat."""
        rows: list[Field] = []
        repeats = False
        shapes = list(self.variants(schema))
        named = sum(1 for _, shape in shapes if shape.get("properties")) > 1
        single = {pointer for pointer, _ in shapes if pointer}
        for number, (pointer, shape) in enumerate(shapes, start=1):
            if reference_of(shape.get("items")) in single:
                continue  # one of a thing, or many: the fields are those of the one
            if pointer in trail or len(trail) >= _DEEPEST:
                repeats = True
                continue
            inner = (*trail, pointer or f"{path}#{number}")
            label = str(shape.get("title") or f"shape {number}") if named else None
            below, repeated = self._shape_fields(shape, path, inner, label)
            rows += below
            repeats = repeats or repeated
        return rows, repeats

    def _shape_fields(
        self, shape: Schema, path: str, trail: tuple[str, ...], label: str | None
    ) -> tuple[list[Field], bool]:
        if _type_name(shape) == "array":
            return self._fields(shape.get("items", {}), f"{path}[]", trail)
        rows: list[Field] = []
        required = _list(shape.get("required"))
        for name, schema in _mapping(shape.get("properties")).items():
            whole = f"{path}.{name}" if path else str(name)
            below, repeats = self._fields(schema, whole, trail)
            rows.append(self.field(whole, schema, required=name in required, variant=label, repeats=repeats))
            rows += below
        values = shape.get("additionalProperties")
        if not isinstance(values, Mapping):
            return rows, False
        below, repeats = self._fields(values, f"{path}.{{key}}" if path else "{key}", trail)
        return rows + below, repeats


def reference_of(schema: Any) -> str:
    """Where a schema points, or an empty text."""
    pointer = schema.get("$ref", "") if isinstance(schema, Mapping) else ""
    return pointer if isinstance(pointer, str) else ""


def json_text(value: Any) -> str:
    """A value as one line of JSON."""
    return json.dumps(value, ensure_ascii=False)


def number_text(value: Any) -> str:
    """A bound without the `.0` that JSON Schema tools write behind whole numbers."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _plain_limits(schema: Schema) -> Iterator[Limit]:
    if "const" in schema:
        yield Limit("always", (json_text(schema["const"]),))
    if values := _list(schema.get("enum")):
        yield Limit("one of", tuple(value if isinstance(value, str) else json_text(value) for value in values))
    for word, text in _BOUNDS:
        if word in schema:
            yield Limit(f"{text} {number_text(schema[word])}")
    for word, text in _COUNTS:
        if word in schema:
            yield Limit(text.format(number_text(schema[word])))
    if "pattern" in schema:
        yield Limit("matches", (str(schema["pattern"]),))


def _type_name(schema: Schema) -> str:
    """The type a schema states, or the one its other words imply."""
    if isinstance(schema.get("type"), str):
        return str(schema["type"])
    if "properties" in schema or "additionalProperties" in schema:
        return "object"
    if "items" in schema:
        return "array"
    values = _list(schema.get("enum")) or ([schema["const"]] if "const" in schema else [])
    names = {_NAMES.get(type(value), "any") for value in values}
    return names.pop() if len(names) == 1 else "any"


_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array"}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
