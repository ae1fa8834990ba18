"""Turns an OpenAPI document into what the reference page shows: groups of operations, and what they have in common.

`page.py` calls `read_document` and hands the result to the template. Headers that every response has and the body that
errors share are found here and described once instead of under each operation. Nothing here writes HTML.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import msgspec

from capstan.server.reference.examples import body_text, curl, example_value, filled_path, given
from capstan.server.reference.schemas import Field, Schemas, reference_of

_METHODS = ("get", "post", "put", "patch", "delete", "head", "options", "trace")
_PLACES = ("path", "query", "header", "cookie")
_GROUP_NAMES = {"rpc": "JSON-RPC", "nfts": "NFTs"}
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]+")


class Parameter(msgspec.Struct, frozen=True):
    """One parameter: its row, its place, and the value the example uses."""

    field: Field
    place: str
    example: str


class Content(msgspec.Struct, frozen=True):
    """A body: its media type, its type in words, its fields and an example."""

    media_type: str
    kind: str
    description: str
    fields: tuple[Field, ...]
    example: str
    # Whether the document gives the example; otherwise it was made from the types.
    stated: bool
    required: bool = True


class Answer(msgspec.Struct, frozen=True):
    """One response. `content` is absent for an error with the common body."""

    status: str
    code: str
    description: str
    headers: tuple[Field, ...]
    content: Content | None


class Operation(msgspec.Struct, frozen=True):
    """One method on one path."""

    anchor: str
    method: str
    path: str
    summary: str
    description: str
    deprecated: bool
    keyed: bool
    scopes: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    body: Content | None
    answers: tuple[Answer, ...]
    errors: tuple[Answer, ...]
    command: str


class Group(msgspec.Struct, frozen=True):
    """The operations under one tag."""

    anchor: str
    name: str
    description: str
    operations: tuple[Operation, ...]


class KeyWay(msgspec.Struct, frozen=True):
    """One way to send the API key: the header with all that stands before the key."""

    header: str
    prefix: str
    description: str


class Reference(msgspec.Struct, frozen=True):
    """All the page shows."""

    title: str
    version: str
    description: str
    address: str
    base_path: str
    keys: tuple[KeyWay, ...]
    headers: tuple[Field, ...]
    error: Content | None
    groups: tuple[Group, ...]


def read_document(document: Mapping[str, Any]) -> Reference:
    """Everything of the document that a reader needs."""
    reader = _Reader(document)
    info = document.get("info", {})
    return Reference(
        title=str(info.get("title", "API")),
        version=str(info.get("version", "")),
        description=str(info.get("description") or info.get("summary") or ""),
        address=reader.address,
        base_path=urlsplit(reader.address).path,
        keys=tuple(reader.keys.values()),
        headers=reader.common_headers,
        error=reader.common_error,
        groups=tuple(reader.groups()),
    )


class _Reader:
    """Reads one document; holds what all its operations share."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._schemas = Schemas(document)
        self._anchors: Counter[str] = Counter()
        servers = document.get("servers") or [{}]
        self.address = str(servers[0].get("url", "")).rstrip("/")
        self.keys = self._key_ways()
        self.common_headers = self._common_headers()
        self._common_error_schema = self._most_frequent_error()
        self.common_error = self._content(self._common_error_schema, whole=True) if self._common_error_schema else None

    def groups(self) -> Iterator[Group]:
        """The operations by their first tag: tags the document describes first, then the others as they come."""
        described = {str(tag["name"]): str(tag.get("description", "")) for tag in self._document.get("tags", ())}
        found: dict[str, list[Operation]] = {name: [] for name in described}
        for path, method, item, operation in self._operations():
            tag = str((operation.get("tags") or ["other"])[0])
            found.setdefault(tag, []).append(self._operation(path, method, item, operation))
        for tag, operations in found.items():
            if operations:
                name = _GROUP_NAMES.get(tag, tag[:1].upper() + tag[1:])
                yield Group(self._anchor(f"group-{tag}"), name, described.get(tag, ""), tuple(operations))

    def _operations(self) -> Iterator[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]]:
        for path, node in self._document.get("paths", {}).items():
            item = self._schemas.resolve(node)
            for method in _METHODS:
                if isinstance(item.get(method), Mapping):
                    yield str(path), method, item, item[method]

    def _operation(self, path: str, method: str, item: Mapping[str, Any], operation: Mapping[str, Any]) -> Operation:
        parameters = self._parameters(item, operation)
        body = self._body(operation)
        answers = [self._answer(str(status), node) for status, node in operation.get("responses", {}).items()]
        security = operation.get("security", self._document.get("security", ()))
        return Operation(
            anchor=self._anchor(f"{method} {path}"),
            method=method.upper(),
            path=path,
            summary=str(operation.get("summary") or ""),
            description=str(operation.get("description") or ""),
            deprecated=bool(operation.get("deprecated")),
            keyed=bool(security),
            scopes=tuple(dict.fromkeys(scope for way in security for scopes in way.values() for scope in scopes)),
            parameters=parameters,
            body=body,
            answers=tuple(answer for answer in answers if not is_error(answer.status)),
            errors=tuple(answer for answer in answers if is_error(answer.status)),
            command=self._command(path, method, parameters, body, security),
        )

    def _parameters(self, item: Mapping[str, Any], operation: Mapping[str, Any]) -> tuple[Parameter, ...]:
        found: dict[tuple[str, str], Parameter] = {}
        for node in (*item.get("parameters", ()), *operation.get("parameters", ())):
            parameter = self._schemas.resolve(node)
            name, place = str(parameter.get("name", "")), str(parameter.get("in", "query"))
            schema = parameter.get("schema", {})
            field = self._schemas.field(
                name,
                schema,
                required=bool(parameter.get("required")),
                description=parameter.get("description"),
                deprecated=parameter.get("deprecated"),
            )
            stated = given(parameter)
            value = stated[0] if stated else example_value(self._schemas, schema, name=name)
            # Null says that a parameter may be left out; nobody can send it.
            field = msgspec.structs.replace(field, kind=field.kind.removesuffix(" or null"))
            found[(place, name)] = Parameter(field, place, value if isinstance(value, str) else json.dumps(value))
        return tuple(sorted(found.values(), key=lambda parameter: _order(parameter.place)))

    def _body(self, operation: Mapping[str, Any]) -> Content | None:
        body = self._schemas.resolve(operation.get("requestBody"))
        content = self._content(body, whole=False)
        if content is None:
            return None
        description = str(body.get("description") or content.description)
        return msgspec.structs.replace(content, description=description, required=bool(body.get("required")))

    def _answer(self, status: str, node: Any) -> Answer:
        response = self._schemas.resolve(node)
        common = {field.name for field in self.common_headers}
        shared = is_error(status) and _content_of(response) == _content_of(self._common_error_schema)
        return Answer(
            status=status,
            code=self._error_code(node) if is_error(status) else "",
            description=_own_words(status, str(response.get("description", ""))),
            headers=tuple(field for field in self._headers(response) if field.name not in common),
            content=None if shared else self._content(response, whole=True),
        )

    def _error_code(self, node: Any) -> str:
        """The stable code of an error: as its example says, else as the shared response is named."""
        for media in self._schemas.resolve(node).get("content", {}).values():
            for example in given(media):
                if isinstance(example, Mapping) and isinstance(example.get("error"), Mapping):
                    return str(example["error"].get("code", ""))
        return reference_of(node).rpartition("/")[2]

    def _content(self, node: Mapping[str, Any] | None, *, whole: bool) -> Content | None:
        """The first media type of a request or response."""
        for media_type, media in (node or {}).get("content", {}).items():
            schema = media.get("schema", {})
            stated = given(media)
            value = stated[0] if stated else example_value(self._schemas, schema, whole=whole)
            return Content(
                media_type=str(media_type),
                kind=self._schemas.kind(schema),
                description=str(self._schemas.resolve(schema).get("description") or ""),
                fields=self._schemas.fields(schema),
                example=body_text(value),
                stated=bool(stated),
            )
        return None

    def _headers(self, response: Mapping[str, Any]) -> Iterator[Field]:
        for name, node in response.get("headers", {}).items():
            header = self._schemas.resolve(node)
            required = bool(header.get("required"))
            description = header.get("description")
            yield self._schemas.field(str(name), header.get("schema", {}), required=required, description=description)

    def _responses(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for _, _, _, operation in self._operations():
            for status, node in operation.get("responses", {}).items():
                yield str(status), self._schemas.resolve(node)

    def _common_headers(self) -> tuple[Field, ...]:
        """The headers which every response of the document has."""
        fields: dict[str, Field] = {}
        seen: Counter[str] = Counter()
        total = 0
        for _, response in self._responses():
            total += 1
            for field in self._headers(response):
                fields.setdefault(field.name, field)
                seen[field.name] += 1
        return tuple(field for name, field in fields.items() if seen[name] == total)

    def _most_frequent_error(self) -> dict[str, Any] | None:
        """The error response whose body most errors have."""
        errors = [response for status, response in self._responses() if is_error(status) and response.get("content")]
        counted = Counter(_content_of(response) for response in errors)
        if not counted:
            return None
        chosen, _ = counted.most_common(1)[0]
        return next(response for response in errors if _content_of(response) == chosen)

    def _key_ways(self) -> dict[str, KeyWay]:
        """The ways to send the key in a header, by their names in the document."""
        found: dict[str, KeyWay] = {}
        for name, node in self._document.get("components", {}).get("securitySchemes", {}).items():
            scheme = self._schemas.resolve(node)
            description = str(scheme.get("description", ""))
            header = str(scheme.get("name", ""))
            if scheme.get("type") == "apiKey" and scheme.get("in") == "header" and _HEADER_NAME.fullmatch(header):
                found[name] = KeyWay(header, "", description)
            elif scheme.get("type") == "http" and str(scheme.get("scheme", "")).lower() == "bearer":
                found[name] = KeyWay("Authorization", "Bearer ", description)
        return found

    def _command(
        self, path: str, method: str, parameters: tuple[Parameter, ...], body: Content | None, security: Any
    ) -> str:
        """The curl command: required parameters only, the first way to send the key."""
        used = [parameter for parameter in parameters if parameter.field.required]
        pairs = {place: [(use.field.name, use.example) for use in used if use.place == place] for place in _PLACES}
        way = next((self.keys[name] for names in security for name in names if name in self.keys), None)
        return curl(
            method.upper(),
            self.address + filled_path(path, dict(pairs["path"])),
            query=pairs["query"],
            headers=pairs["header"],
            key_header=f"{way.header}: {way.prefix}" if way else None,
            body=body.example if body else None,
            media_type=body.media_type if body else "",
        )

    def _anchor(self, text: str) -> str:
        """An id for the page, unique and made of plain characters."""
        plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"
        self._anchors[plain] += 1
        return plain if self._anchors[plain] == 1 else f"{plain}-{self._anchors[plain]}"


def _order(place: str) -> int:
    return _PLACES.index(place) if place in _PLACES else len(_PLACES)


def is_error(status: str) -> bool:
    """Whether a response stands for a failure; `default` is what comes when nothing else fits."""
    return status[:1] in ("4", "5") or status == "default"


def _own_words(status: str, description: str) -> str:
    """A description without the phrase that frameworks put in when nobody wrote one."""
    try:
        return "" if description == HTTPStatus(int(status)).description else description
    except ValueError:
        return description


def _content_of(response: Mapping[str, Any] | None) -> str:
    """What the body of a response looks like, as text that can be compared; examples do not count."""
    content = (response or {}).get("content", {})
    return json.dumps({name: media.get("schema") for name, media in content.items()}, sort_keys=True)
