"""A small OpenAPI document of the kind the service produces, written by hand for the tests of the reference page.

It has what makes such documents hard to show: references, fields that may be null in both spellings, enums, arrays,
maps, unions of shapes, a shape that contains itself, and headers and errors that all operations share.
"""

from typing import Any

ADDRESS = "0x52908400098527886E0F7030069857D2E4169EE7"
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>`</code><b>`$(touch pwned){{ 7*7 }}"
_WRITTEN = ("description", "title", "summary", "pattern", "format", "version", "const", "default", "example")
_LISTED = ("enum", "examples", "tags")


def _ref(name: str, kind: str = "schemas") -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}


def _json(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema, **more}}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"oneOf": [schema, {"type": "null"}]}


_COMMON = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Request-Id")


def _answer(text: str, schema: dict[str, Any] | None = None, **headers: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": text,
        "headers": {**{name: _ref(name, "headers") for name in _COMMON}, **headers},
    }
    if schema is not None:
        answer["content"] = _json(schema)
    return answer


def _errors(*codes: str) -> dict[str, Any]:
    statuses = {"invalid_request": "400", "unauthorized": "401", "not_found": "404", "rate_limited": "429"}
    return {statuses[code]: _ref(code, "responses") for code in codes}


def _error_response(text: str, *more: str) -> dict[str, Any]:
    return {
        "description": text,
        "headers": {name: _ref(name, "headers") for name in (*_COMMON, *more)},
        "content": _json(_ref("Error")),
    }


def _header(text: str, kind: str = "integer") -> dict[str, Any]:
    return {"description": text, "required": True, "schema": {"type": kind}}


def _parameter(name: str, place: str, schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    required = place == "path"
    return {"name": name, "in": place, "schema": schema, "required": required, "deprecated": False, **more}


_CHAIN = _parameter("chain", "path", {"type": "string"}, description="The chain, such as `ethereum`.")
_PAGE = _parameter("page", "query", {"type": "integer", "minimum": 1.0, "default": 1}, description="The page.")
_LIMIT = _parameter(
    "limit",
    "query",
    {"type": "integer", "minimum": 1.0, "maximum": 100.0, "default": 50},
    description="Entries on one page.",
)

_PATHS: dict[str, Any] = {
    "/v1/rpc/{chain}/{network}": {
        "post": {
            "tags": ["rpc"],
            "summary": "JSON-RPC call",
            "description": "Passes a call, or a batch of calls, to a node.\n\nScope: `rpc:read`.",
            "operationId": "Rpc",
            "parameters": [_CHAIN, _parameter("network", "path", {"type": "string", "examples": ["mainnet"]})],
            "requestBody": {
                "required": True,
                "content": _json(
                    {"oneOf": [_ref("Call"), {"type": "array", "items": _ref("Call"), "maxItems": 100}]},
                    examples={
                        "block": {"value": {"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}}
                    },
                ),
            },
            "responses": {
                "200": _answer("The node's answer", {"type": "object", "additionalProperties": {}}),
                **_errors("invalid_request", "unauthorized", "rate_limited"),
            },
        }
    },
    "/v1/tokens/{chain}/balances/{address}": {
        "get": {
            "tags": ["tokens"],
            "summary": "ERC-20 balances",
            "description": "What an address holds.\n\n- read from the chain at one block\n- ordered by value",
            "operationId": "Balances",
            "parameters": [
                _CHAIN,
                _parameter("address", "path", {"type": "string", "pattern": "^0x[0-9a-fA-F]{40}$"}, example=ADDRESS),
                _PAGE,
                _LIMIT,
                _parameter("network", "query", _nullable({"type": "string"}), description="Another network."),
            ],
            "responses": {
                "200": _answer(
                    "The balances",
                    _ref("BalanceList"),
                    **{"X-Index-Block": _header("The last block the answer knows of.")},
                ),
                **_errors("invalid_request", "unauthorized", "not_found", "rate_limited"),
            },
        }
    },
    "/v1/webhooks": {
        "get": {
            "tags": ["webhooks"],
            "summary": "List webhooks",
            "operationId": "ListWebhooks",
            "parameters": [_PAGE, _parameter("status", "query", _nullable(_ref("Status")))],
            "responses": {"200": _answer("The webhooks", {"type": "array", "items": _ref("Webhook")})},
        },
        "post": {
            "tags": ["webhooks"],
            "summary": "Create a webhook",
            "operationId": "CreateWebhook",
            "requestBody": {"required": True, "content": _json(_ref("NewWebhook"))},
            "responses": {
                "201": _answer("The webhook", _ref("Webhook")),
                **_errors("invalid_request", "unauthorized"),
            },
        },
    },
    "/v1/webhooks/{id}": {
        "delete": {
            "tags": ["webhooks"],
            "summary": "Delete a webhook",
            "operationId": "DeleteWebhook",
            "deprecated": True,
            "parameters": [_parameter("id", "path", {"type": "string", "examples": ["wh_1/2"]})],
            "responses": {
                "200": _answer("The id of what is gone", _ref("Deleted")),
                "409": _answer("It is being delivered.", {"type": "object", "properties": {"busy": {"const": True}}}),
                **_errors("not_found"),
            },
        }
    },
    "/health": {
        "get": {
            "tags": ["service"],
            "summary": "Whether the service works",
            "operationId": "Health",
            "security": [],
            "responses": {"200": _answer("It works", _ref("Health"))},
        }
    },
}

_SCHEMAS: dict[str, Any] = {
    "Error": {
        "type": "object",
        "title": "Error",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message", "status"],
                "properties": {
                    "code": {"type": "string", "description": "A stable word for programs."},
                    "message": {"type": "string", "description": "What was wrong, for people."},
                    "status": {"type": "integer", "description": "The HTTP status."},
                },
            }
        },
    },
    "Call": {
        "type": "object",
        "title": "Call",
        "required": ["jsonrpc", "method"],
        "properties": {
            "jsonrpc": {"const": "2.0"},
            "id": {"type": ["string", "integer", "null"]},
            "method": {"type": "string", "examples": ["eth_blockNumber"]},
            "params": {"oneOf": [{"type": "array", "items": {}}, {"type": "object", "additionalProperties": {}}]},
        },
    },
    "Token": {
        "type": "object",
        "title": "Token",
        "required": ["contract", "balance", "usd_value"],
        "properties": {
            "contract": {"type": "string", "description": "The token's contract."},
            "balance": {"type": "string", "description": "Raw amount in the smallest unit."},
            "usd_value": _nullable({"type": "string"}),
            "logo_url": {"type": ["string", "null"], "format": "uri"},
            "standard": {"type": "string", "enum": ["ERC20", "ERC777"], "default": "ERC20"},
        },
    },
    "BalanceList": {
        "type": "object",
        "title": "BalanceList",
        "required": ["address", "tokens", "total"],
        "properties": {
            "address": {"type": "string"},
            "tokens": {"type": "array", "items": _ref("Token"), "maxItems": 100},
            "total": {"type": "integer", "minimum": 0.0},
        },
    },
    "Status": {"type": "string", "title": "Status", "enum": ["active", "paused", "disabled"]},
    "Rule": {
        "type": "object",
        "title": "Rule",
        "description": "A condition, or several joined by `any`.",
        "properties": {"topic": {"type": "string"}, "any": {"type": "array", "items": _ref("Rule")}},
    },
    "Daily": {
        "type": "object",
        "title": "Daily",
        "required": ["hour"],
        "properties": {"hour": {"type": "integer", "minimum": 0, "maximum": 23}},
    },
    "Counted": {
        "type": "object",
        "title": "Counted",
        "required": ["events"],
        "properties": {"events": {"type": "integer", "exclusiveMinimum": 0}},
    },
    "NewWebhook": {
        "type": "object",
        "title": "NewWebhook",
        "required": ["url", "chain", "event_type"],
        "properties": {
            "url": {"type": "string", "format": "uri", "description": "An HTTPS address.", "maxLength": 2048},
            "chain": {"type": "string"},
            "event_type": {"type": "string", "enum": ["address_activity", "token_transfer"]},
            "rule": _nullable(_ref("Rule")),
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "owners": {"type": "object", "additionalProperties": _ref("Deleted")},
            "digest": {"oneOf": [_ref("Daily"), _ref("Counted"), {"type": "null"}]},
        },
    },
    "Webhook": {
        "title": "Webhook",
        "allOf": [
            _ref("NewWebhook"),
            {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}, "status": _ref("Status")}},
        ],
    },
    "Deleted": {
        "type": "object",
        "title": "Deleted",
        "required": ["id", "deleted"],
        "properties": {"id": {"type": "string"}, "deleted": {"type": "boolean"}},
    },
    "Health": {"type": "object", "title": "Health", "properties": {"status": {"type": "string"}}},
}


def sample_document(address: str = "https://api.example.com") -> dict[str, Any]:
    """The document, as if the service answered at `address`."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Capstan", "version": "0.1.0", "description": "A blockchain API."},
        "servers": [{"url": address}],
        "security": [{"apiKey": []}, {"bearer": []}],
        "tags": [{"name": "tokens", "description": "What addresses hold."}],
        "paths": _PATHS,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The better way."},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
            "headers": {
                "X-RateLimit-Limit": _header("Requests per second that the account may make."),
                "X-RateLimit-Remaining": _header("Requests left in the window."),
                "X-RateLimit-Reset": _header("When the window is whole again."),
                "X-Request-Id": _header("The id of this request.", "string"),
                "Retry-After": _header("Whole seconds to wait."),
            },
            "responses": {
                "invalid_request": _error_response("The request is malformed."),
                "unauthorized": _error_response("No API key, or a wrong one."),
                "not_found": _error_response("There is no such thing."),
                "rate_limited": _error_response("A limit is spent.", "Retry-After"),
            },
        },
    }


def hostile(node: Any, word: str = "") -> Any:
    """A copy of a document in which every text and every name that people choose carries markup."""
    if isinstance(node, dict) and word == "components":
        # These names are what references point to.
        return {kind: {name: hostile(value) for name, value in named.items()} for kind, named in node.items()}
    if isinstance(node, dict) and word in ("properties", "paths", "headers"):
        return {f"{name}{HOSTILE}": hostile(value) for name, value in node.items()}
    if isinstance(node, dict):
        return {name: hostile(value, name) for name, value in node.items()}
    if isinstance(node, list):
        return [hostile(value, "title" if word in _LISTED else "") for value in node]
    return f"{node}{HOSTILE}" if isinstance(node, str) and word in _WRITTEN else node
