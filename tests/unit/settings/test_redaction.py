"""Settings shown to people hold no secret, in whatever way they are shown."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from capstan.settings import Settings, load_settings, redacted

from .support import load

SECRET = "hunter2hunter2hunter2"
TEXT = f"""
[server]
operator_token = "{SECRET}"
[storage]
url = "postgresql://capstan:{SECRET}@db.example:5432/capstan?password={SECRET}"
[redis]
url = "rediss://:{SECRET}@redis.example:6380/1"
[mail]
smtp_url = "smtp://mailer:{SECRET}@mail.example:587"
from = "capstan@example.com"
[bundler]
signers = ["keystore:{SECRET}"]
keystore_password = "{SECRET}"
[networks."base/mainnet"]
upstreams = [
    "https://node.example/v2/{SECRET}",
    {{ url = "wss://user:{SECRET}@other.example:8546/?key={SECRET}", headers = {{ authorization = "{SECRET}" }} }},
    "http://127.0.0.1:8545",
]
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(tmp_path, TEXT)


def test_no_secret_is_in_the_redacted_settings(settings: Settings) -> None:
    assert SECRET not in msgspec.json.encode(redacted(settings)).decode()


def test_printing_settings_or_any_part_shows_no_secret(settings: Settings) -> None:
    parts: list[object] = [settings, settings.server, settings.storage, settings.redis, settings.mail]
    parts += [settings.networks, *settings.networks.values(), *settings.networks["base/mainnet"].upstreams]
    for part in parts:
        assert SECRET not in repr(part)
        assert SECRET not in f"{part}"


def test_what_is_no_secret_stays_readable(settings: Settings) -> None:
    shown = redacted(settings)
    assert shown["server"]["operator_token"] == "[hidden]"
    assert shown["server"]["port"] == 8080
    assert shown["storage"]["url"] == "postgresql://capstan:hidden@db.example:5432/capstan?password=hidden"
    assert shown["redis"]["url"] == "rediss://:hidden@redis.example:6380/1"
    assert shown["mail"] == {
        "smtp_url": "smtp://mailer:hidden@mail.example:587",
        "from": "capstan@example.com",
        "operators": [],
        "timeout_seconds": 10.0,
    }
    upstreams = shown["networks"]["base/mainnet"]["upstreams"]
    assert [upstream["url"] for upstream in upstreams] == [
        "https://node.example/…",
        "wss://other.example:8546/…",
        "http://127.0.0.1:8545",
    ]
    assert upstreams[1]["headers"] == {"authorization": "[hidden]"}
    assert shown["networks"]["base/mainnet"]["chain_id"] == 8453


def test_settings_that_are_not_set_are_shown_as_empty() -> None:
    shown = redacted(load_settings(None, {}))
    assert (shown["server"]["operator_token"], shown["redis"]["url"], shown["storage"]["url"]) == ("", "", "sqlite")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///relative.db", "sqlite:///relative.db"),
        ("sqlite:////var/lib/capstan.db", "sqlite:////var/lib/capstan.db"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
        ("postgresql://u:p%40ss@host/db", "postgresql://u:hidden@host/db"),
        ("postgresql:///db?host=/run/pg", "postgresql:///db?host=hidden"),
        ("postgresql://u:pa/ss@host/db", "[hidden]"),
        ("postgresql://u:pa?ss@host/db", "[hidden]"),
        ("not a url but a password", "[hidden]"),
        ("postgresql://[broken/db", "[hidden]"),
    ],
)
def test_database_address_is_shown_without_password(url: str, shown: str) -> None:
    storage = msgspec.structs.replace(load_settings(None, {}).storage, url=url)
    assert redacted(storage)["url"] == shown


PASSWORD = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=6, max_size=30)


@hypothesis_settings(deadline=None)
@given(PASSWORD.map(lambda text: "Zq7" + text + "7qZ"))
def test_no_password_gets_through_however_it_is_written(password: str) -> None:
    defaults = load_settings(None, {})
    redis = msgspec.structs.replace(defaults.redis, url=f"redis://user:{password}@host:6379/0")
    for piece in ("Zq7", "7qZ"):
        assert piece not in str(redacted(redis))
        assert piece not in repr(redis)
