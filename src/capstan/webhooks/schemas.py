"""The JSON schemas of the bodies that create and change webhooks, for the API description.

Called by the routes when they are made. A body that creates has one shape for each event type, because the type decides
which keys `config` has. What is described is what `filters` takes. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from capstan.core.schemas import DECIMAL_WORD, inlined_schema
from capstan.webhooks.filters import MOST_CONFIRMATIONS, MOST_ENTRIES, MOST_EVERY, MOST_TOPICS
from capstan.webhooks.kinds import EVENT_TYPES, EventType
from capstan.webhooks.models import ChangeWebhook, CreateWebhook

Schema = dict[str, Any]


def _hex(size: int) -> Schema:
    return {"type": "string", "pattern": f"^0x[0-9a-fA-F]{{{2 * size}}}$"}


def _listed(items: Schema, description: str) -> Schema:
    return {"type": "array", "items": items, "maxItems": MOST_ENTRIES, "description": description}


_TOPIC = _hex(32)
_NUMBER: Schema = {
    "anyOf": [
        {"type": "string", "pattern": f"^{DECIMAL_WORD}$"},
        {"type": "string", "pattern": "^0x[0-9a-fA-F]{1,64}$"},
        {"type": "integer", "minimum": 0, "maximum": 2**256 - 1},
    ]
}
_KEYS: Mapping[str, Schema] = {
    "addresses": _listed(_hex(20), "Addresses that are watched."),
    "contracts": _listed(_hex(20), "Contracts of tokens or NFTs."),
    "senders": _listed(_hex(20), "Who sends."),
    "receivers": _listed(_hex(20), "Who receives."),
    "token_ids": _listed(_NUMBER, "Ids of NFTs, best as decimal strings."),
    "tx_hashes": _listed(_hex(32), "Hashes of transactions."),
    "selectors": _listed(_hex(4), "The first four bytes of the input: which function is called."),
    "topics": {
        "type": "array",
        "items": {"anyOf": [{"type": "null"}, _TOPIC, {"type": "array", "items": _TOPIC, "maxItems": MOST_ENTRIES}]},
        "maxItems": MOST_TOPICS,
        "description": "As in `eth_getLogs`: for each position null, a topic, or a list of topics.",
    },
    "min_value": {**_NUMBER, "description": "The least amount, in the smallest unit, best as a decimal string."},
    "confirmations": {
        "type": "integer",
        "minimum": 0,
        "maximum": MOST_CONFIRMATIONS,
        "description": "How many blocks, the event's own included, there must be before it is told.",
    },
    "every": {"type": "integer", "minimum": 1, "maximum": MOST_EVERY, "description": "Each n-th block."},
}


def creation_schema() -> Schema:
    """The body of `POST /v1/webhooks`."""
    whole = inlined_schema(CreateWebhook)
    return {
        "title": whole["title"],
        "description": whole["description"],
        "oneOf": [_of_type(whole, kind) for kind in EVENT_TYPES.values()],
    }


def change_schema() -> Schema:
    """The body of `PATCH /v1/webhooks/{id}`. Which keys `config` may have is up to the type of the webhook."""
    whole = inlined_schema(ChangeWebhook)
    config = _config(_KEYS, "The whole filter anew, with the keys of the webhook's event type.")
    return {**whole, "properties": {**whole["properties"], "config": config}}


def _of_type(whole: Schema, kind: EventType) -> Schema:
    properties = dict(whole["properties"])
    properties["event_type"] = {"const": kind.name, "type": "string", "description": f"Format {kind.format}."}
    given = f"Matches nothing until it has {' or '.join(sorted(kind.given))}." if kind.given else "Empty: all events."
    properties["config"] = _config(sorted(kind.keys), f"The filter. {given}")
    return {"title": kind.name, "type": "object", "properties": properties, "required": whole["required"]}


def _config(keys: Iterable[str], description: str) -> Schema:
    properties = {key: _KEYS[key] for key in keys}
    return {"type": "object", "properties": properties, "additionalProperties": False, "description": description}
