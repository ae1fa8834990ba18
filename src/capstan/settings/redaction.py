"""Hides secrets of the settings for display.

`redacted` is what `doctor` and the start-up log show. Which fields are secret, and how much of them may be seen, is
marked on the field in `model` with one of the constants below; a new secret field needs only its mark.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec
from msgspec import Meta, inspect

SECRET = Meta(extra={"secret": "all"})
"""Nothing of the value is shown but that it is set."""
SECRET_PASSWORD = Meta(extra={"secret": "password"})
"""A URL of which the password is hidden."""
SECRET_BEYOND_HOST = Meta(extra={"secret": "beyond_host"})
"""A URL of which only scheme and host are shown: providers put their key in the path."""
SECRET_VALUES = Meta(extra={"secret": "values"})
"""A table whose keys are shown and whose values are not."""
SECRET_ITEMS = Meta(extra={"secret": "items"})
"""A list of which only the length is shown."""

HIDDEN = "[hidden]"
_HIDDEN_IN_URL = "hidden"


def redacted(settings: msgspec.Struct) -> dict[str, Any]:
    """Settings, or a part of them, as plain values without secrets, ready for JSON or a table."""
    return {name: _plain(value) for name, value in hidden(settings).items()}


def hidden(struct: msgspec.Struct) -> dict[str, Any]:
    """The fields of one struct by their TOML names, the secret ones hidden. Nested structs are left as they are."""
    rules = secret_rules(type(struct))
    fields = msgspec.structs.fields(struct)
    return {
        field.encode_name: _RULES[rules[field.name]](getattr(struct, field.name))
        if field.name in rules
        else getattr(struct, field.name)
        for field in fields
    }


@cache
def secret_rules(struct_type: type[msgspec.Struct]) -> dict[str, str]:
    """The secret fields of a struct type and how each is hidden."""
    found = {}
    for field in msgspec.structs.fields(struct_type):
        rule = secret_rule(field.type)
        if rule:
            found[field.name] = rule
    return found


def secret_rule(annotation: Any) -> str | None:
    """How a field with this annotation is hidden; `None` when it is no secret."""
    info = inspect.type_info(annotation)
    if isinstance(info, inspect.Metadata) and info.extra:
        rule = info.extra.get("secret")
        return rule if isinstance(rule, str) else None
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return redacted(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _hide_all(value: str) -> str:
    return HIDDEN if value else ""


def _hide_values(value: dict[str, str]) -> dict[str, str]:
    return dict.fromkeys(value, HIDDEN)


def _hide_items(value: tuple[str, ...]) -> list[str]:
    return [HIDDEN for _ in value]


def _hide_password(value: str) -> str:
    parts = _split(value)
    if parts is None or not parts.scheme:
        return value if value in {"", "sqlite"} else HIDDEN
    login, at, host = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    shown_login = user + (f":{_HIDDEN_IN_URL}" if colon else "") + at
    # Drivers also take credentials as query parameters, under names that are not ours to know.
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    query = "?" + "&".join(f"{name}={_HIDDEN_IN_URL}" for name in names) if names else ""
    return f"{parts.scheme}://{shown_login}{host}{parts.path}{query}"


def _hide_beyond_host(value: str) -> str:
    parts = _split(value)
    if parts is None or not parts.scheme or not parts.netloc:
        return _hide_all(value)
    host = parts.netloc.rpartition("@")[2]
    more = bool(parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc)
    return f"{parts.scheme}://{host}" + ("/…" if more else "")


def _split(value: str) -> SplitResult | None:
    """The parts of a URL, or `None` where an unescaped `/` may have moved half of the password into the path."""
    try:
        parts = urlsplit(value)
    except ValueError:
        return None
    return None if "@" in parts.path + parts.query + parts.fragment else parts


_RULES: dict[str, Callable[[Any], Any]] = {
    "all": _hide_all,
    "password": _hide_password,
    "beyond_host": _hide_beyond_host,
    "values": _hide_values,
    "items": _hide_items,
}
