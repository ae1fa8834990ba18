"""The reference pages say what the code says."""

import os
import re
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from capstan.access.secrets import well_formed
from capstan.cli.common import ExitCode
from capstan.core import errors, frames, jsonrpc
from capstan.feed.filters import MOST_ADDRESSES
from capstan.rpc.blocks import RECENT_BLOCKS
from capstan.settings import Upstream, load_settings
from capstan.wiring import network_specs
from tests.docs.generated import PARTS, part_names, regenerated
from tests.docs.markdown import page_names, read_page
from tests.support.development import Development

# Every key of an upstream but its address, with a value that is not the default.
OTHER_THAN_DEFAULT: dict[str, object] = {
    "archive": False,
    "connect_timeout_seconds": 1.5,
    "connections": 7,
    "headers": {"authorization": "Bearer secret"},
    "max_response_bytes": 4711,
    "methods_allow": ["eth_call"],
    "methods_deny": ["eth_getLogs"],
    "name": "other",
    "requests_per_second": 7,
    "tier": 3,
    "timeout_seconds": 20,
    "weight": 7,
}


@pytest.mark.parametrize("name", [name for name in page_names() if part_names(read_page(name).text)])
def test_generated_parts_are_current(name: str) -> None:
    """Otherwise run: python -m tests.docs.generated."""
    text = read_page(name).text
    assert regenerated(text) == text, f"{name} is not current; run: python -m tests.docs.generated"


def test_every_generated_part_is_in_a_page() -> None:
    """A part that no page shows would never be read."""
    shown = [part for name in page_names() for part in part_names(read_page(name).text)]
    assert sorted(shown) == sorted(PARTS)


def test_paths_are_those_of_the_service(development: Development) -> None:
    """The table of paths against the description that the service itself gives."""
    described: dict[str, Any] = httpx.get(f"{development.base_url}/openapi.json", timeout=20).json()
    paths = {f"{method.upper()} {path}" for path, methods in described["paths"].items() for method in methods}
    documented = re.findall(
        r"^\| `((?:GET|POST|PATCH|DELETE) [^`]+)` \|", read_page("docs/reference/http.md").text, re.MULTILINE
    )
    assert sorted(documented) == sorted(paths)


def test_fields_of_dev_json_are_documented(development: Development) -> None:
    """All of them, and no others."""
    page = read_page("docs/explanation/development-chain.md").text
    table = page.partition("| Field |")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = [name for row in rows for name in re.findall(r"`([a-z0-9_]+)`", row)]
    assert sorted(documented) == sorted(development.document)


def test_metrics_named_in_the_pages_exist(development: Development) -> None:
    """Those of Redis are there only where Redis is."""
    token = development.document["operator_token"]
    answer = httpx.get(f"{development.origin}/metrics", headers={"Authorization": f"Bearer {token}"}, timeout=20)
    assert answer.status_code == 200
    metrics = answer.text
    rows = [
        line
        for line in read_page("docs/how-to/check-an-installation.md").text.splitlines()
        if line.startswith("| `cap")
    ]
    assert len(rows) > 3
    missing = [row for row in rows if "only with Redis" not in row and row.split("`")[1] not in metrics]
    assert not missing


@pytest.mark.parametrize("name", ["docs/reference/cli.md", "docs/how-to/check-an-installation.md"])
def test_exit_codes_are_those_of_the_command_line(name: str) -> None:
    """The numbers in the tables."""
    table = re.findall(r"^\| (\d) \| ", read_page(name).text, re.MULTILINE)
    assert [int(code) for code in table] == [code.value for code in ExitCode]


def test_json_rpc_codes_are_those_of_the_code() -> None:
    """The codes in the table of failures."""
    names = "METHOD_NOT_FOUND METHOD_NOT_ENABLED INVALID_PARAMS INVALID_REQUEST SCOPE_REFUSED INTERNAL_ERROR"
    table = read_page("docs/reference/http.md").text.partition("| Case |")[2].partition("\n\n")[0]
    documented = {int(code) for code in re.findall(r"-32\d{3}", table)}
    assert documented == {jsonrpc.DEADLINE_PASSED, *(getattr(jsonrpc, name) for name in names.split())}


def test_statuses_in_the_table_of_failures_exist() -> None:
    """Every HTTP status there is one that the errors of the code have."""
    table = read_page("docs/reference/http.md").text.partition("| Case |")[2].partition("\n\n")[0]
    columns = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")]
    documented = {int(status) for column in columns for status in re.findall(r"\d{3}", column)} - {200}
    known = {
        kind.status for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ApiError)
    }
    assert documented
    assert documented <= known


def test_numbers_in_sentences_are_the_defaults() -> None:
    """Where a sentence repeats a default, with the name of the setting or close to it."""
    settings = load_settings(Path(os.devnull), {})
    http, units = read_page("docs/reference/http.md").text, read_page("docs/reference/compute-units.md").text
    keys = read_page("docs/how-to/manage-keys.md").text
    assert settings.server.body_limit_bytes == 5 * 1024 * 1024
    assert "at most 5 MiB (`server.body_limit_bytes`)" in http
    assert f"a batch of at most {settings.server.batch_limit} (`server.batch_limit`)" in http
    assert settings.units.archive_depth == RECENT_BLOCKS == 128
    assert settings.units.archive_factor == 10
    assert "more than 128 behind the head" in units
    assert "cost ten times as much" in units
    assert f"{settings.plans.free.keys} on Free, {settings.plans.growth.keys} on Growth" in keys
    for name, setting in (
        ("docs/explanation/keys.md", "(`access.max_staleness_seconds`)"),
        ("docs/explanation/limits.md", "(`access.max_staleness_seconds`)"),
    ):
        assert f"{settings.access.max_staleness_seconds:g} seconds" in read_page(name).text
        assert setting in read_page(name).text
    assert settings.access.poll_seconds == 0.25
    assert "four times a second (`access.poll_seconds`)" in read_page("docs/explanation/keys.md").text
    assert f"{settings.access.cache_entries:,} of them" in read_page("docs/explanation/keys.md").text


def test_numbers_on_the_page_of_the_websocket_are_the_defaults() -> None:
    """Each is a setting of the section feed."""
    feed = load_settings(Path(os.devnull), {}).feed
    page = " ".join(read_page("docs/reference/websocket.md").text.split())
    for sentence in (
        f"more than {feed.sockets_per_key:,} sockets of one key",
        f"more than {feed.sockets:,} sockets in all",
        f"At most {feed.calls_in_flight} calls of one socket",
        f"at most {feed.replay_blocks:,} blocks (`feed.replay_blocks`)",
        f"more than {feed.grace_seconds:g} seconds of its limit behind (`feed.grace_seconds`)",
        f"a ping every {feed.ping_seconds:g} seconds",
        f"a message over {feed.message_bytes >> 20} MiB",
        f"more than {feed.send_buffer_bytes >> 20} MiB waited",
        f"{feed.refusals} messages in a row",
        f"up to {MOST_ADDRESSES:,}, and",
    ):
        assert sentence in page, sentence
    assert feed.idle_seconds == 3600
    assert "asked for an hour" in page


def test_close_codes_on_the_page_of_the_websocket_are_those_of_the_code() -> None:
    """All that the server itself sends, and no others."""
    table = read_page("docs/reference/websocket.md").text.partition("| Code | When |")[2].partition("\n\n")[0]
    first_column = " ".join(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE))
    documented = {int(code) for code in re.findall(r"\b\d{4}\b", first_column)}
    # 1005 stands for a close frame without a code; 4403 is kept for what the handshake refuses today.
    sent = {value for name, value in vars(frames).items() if name[0].isupper() and isinstance(value, int)}
    assert documented == sent - {frames.NO_STATUS, frames.NOT_ALLOWED}


def test_settings_without_effect_are_named() -> None:
    """The page on networks says which keys of an upstream do not reach the code that calls nodes."""
    page = read_page("docs/how-to/add-a-network.md").text
    sentence = page.partition("<!-- no effect yet -->")[2].partition(".")[0]
    keys = {field.encode_name for field in msgspec.structs.fields(Upstream)}
    assert keys == {"url", *OTHER_THAN_DEFAULT}, "give every key of an upstream another value above"
    usual = specs_with({})
    unused = {key for key, value in OTHER_THAN_DEFAULT.items() if specs_with({key: value}) == usual}
    assert set(re.findall(r"`([a-z_]+)`", sentence)) == unused


def specs_with(changes: dict[str, object]) -> object:
    """What the chain package is told of a network whose first upstream has these keys."""
    upstreams = [{"url": "http://127.0.0.1:1", **changes}, {"url": "http://127.0.0.1:2"}]
    return network_specs(load_settings(Path(os.devnull), {}, {"networks.ethereum/sepolia.upstreams": upstreams}))


def log_events() -> set[str]:
    """The events that the service logs; some are named like settings."""
    source = Path(__file__).resolve().parents[2] / "src" / "capstan"
    written = re.compile(r'\.(?:debug|info|warning|error|exception)\(\s*"([a-z_.]+)"')
    return {event for path in source.rglob("*.py") for event in written.findall(path.read_text(encoding="utf-8"))}


def test_settings_named_in_the_pages_exist() -> None:
    """`section.key` in a sentence, and `CAPSTAN_SECTION__KEY` anywhere."""
    events = log_events()
    reference = read_page("docs/reference/configuration.md").text
    sections = re.findall(r"^## `([a-z_.]+)`", reference, re.MULTILINE)
    for name in page_names():
        page = read_page(name)
        for line, code in page.inline_code:
            section, dot, key = code.partition(" = ")[0].rpartition(".")
            if dot and section in sections and code not in events and not code.endswith((".md", ".toml")):
                assert f"| `{key}` |" in reference, f"{name}:{line}: there is no setting {code}"
        for variable in re.findall(r"\bCAPSTAN_[A-Z]+__[A-Z_]+", page.text):
            assert variable.startswith("CAPSTAN_NETWORKS__") or f"`{variable}`" in reference, f"{name}: {variable}"


def test_example_key_has_the_form_it_explains() -> None:
    """Prefix, length and checksum."""
    found = re.findall(r"svc_test_[0-9A-Za-z]{30,}", read_page("docs/explanation/keys.md").text)
    assert len(found) == 1
    assert well_formed(found[0])
