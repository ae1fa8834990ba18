"""Files, environment and command line are read in order, and whatever is wrong names its source."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from capstan.settings import SettingsError, load_settings
from capstan.settings.layers import (
    Layers,
    annotation_at,
    leaf_paths,
    split_dotted,
    variable_name,
    variable_path,
)

from .support import load, problem, problems


def test_file_wins_over_defaults_and_leaves_the_rest(tmp_path: Path) -> None:
    settings = load(tmp_path, '[server]\nport = 9000\n[plans.free]\nkeys = 7\n[mail]\nfrom = "a@example.com"\n')
    assert settings.server.port == 9000
    assert settings.server.host == "127.0.0.1"
    assert (settings.plans.free.keys, settings.plans.free.webhooks) == (7, 5)
    assert settings.mail.from_ == "a@example.com"


def test_environment_wins_over_the_file_and_the_command_line_over_both(tmp_path: Path) -> None:
    text = '[server]\nport = 1\nhost = "a"\nbatch_limit = 1\n'
    environ = {"CAPSTAN_SERVER__PORT": "2", "CAPSTAN_SERVER__HOST": "b"}
    settings = load(tmp_path, text, environ=environ, overrides={"server.port": 3})
    assert (settings.server.batch_limit, settings.server.host, settings.server.port) == (1, "b", 3)


def test_named_file_wins_over_the_variable_and_that_over_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, port in (("named.toml", 1), ("variable.toml", 2), ("capstan.toml", 3)):
        (tmp_path / name).write_text(f"[server]\nport = {port}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    variable = {"CAPSTAN_CONFIG": str(tmp_path / "variable.toml")}
    assert load_settings(tmp_path / "named.toml", variable).server.port == 1
    assert load_settings(None, variable).server.port == 2
    assert load_settings(None, {"CAPSTAN_CONFIG": ""}).server.port == 3
    (tmp_path / "capstan.toml").unlink()
    assert load_settings(None, {}).server.port == 8080


@pytest.mark.parametrize("through", ["argument", "variable"])
def test_named_file_that_is_missing_is_refused(tmp_path: Path, through: str) -> None:
    path = tmp_path / "absent.toml"
    named, environ = (path, {}) if through == "argument" else (None, {"CAPSTAN_CONFIG": str(path)})
    with pytest.raises(SettingsError) as caught:
        load_settings(named, environ)
    assert str(caught.value) == f"{path}: cannot be read: No such file or directory"


def test_directory_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        load_settings(tmp_path, {})


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"mode = \xff")
    with pytest.raises(SettingsError) as caught:
        load_settings(path, {})
    assert str(caught.value) == f"{path}: is not UTF-8 text: byte 7"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("mode = \n", "line 1, column"),
        ("[server]\nport = 9000\nhost = 'a\n", "line 3, end of file"),
        ("[server]\nport = 1\nport = 2\n", "line 3, column"),
        ('[server]\nhost = """', "line 2, end of file"),
    ],
)
def test_toml_syntax_error_names_file_and_line(tmp_path: Path, text: str, where: str) -> None:
    found = problem(tmp_path, text)
    assert found.source == str(tmp_path / "my-capstan.toml")
    assert found.key == ""
    assert found.reason.startswith(where)
    assert ": is not valid TOML: " in found.reason


@pytest.mark.parametrize(
    ("text", "key", "meant"),
    [
        ("[server]\nprot = 1\n", "server.prot", "port"),
        ("[sever]\nport = 1\n", "sever", "server"),
        ("port = 1\n", "port", "server.port"),
        ("[plans.fre]\nkeys = 1\n", "plans.fre", "free"),
        ("[plans.free]\nwebhook = 1\n", "plans.free.webhook", "webhooks"),
        ('[networks."base/mainnet"]\nmulticall = "x"\n', 'networks."base/mainnet".multicall', "multicall3"),
        (
            '[[networks."base/mainnet".upstreams]]\nurl = "http://a"\nwieght = 1\n',
            'networks."base/mainnet".upstreams[0].wieght',
            "weight",
        ),
    ],
)
def test_unknown_setting_in_a_file_gets_a_suggestion(tmp_path: Path, text: str, key: str, meant: str) -> None:
    found = problem(tmp_path, text)
    assert found.source == str(tmp_path / "my-capstan.toml")
    assert found.key == key
    assert found.reason == f'unknown setting; did you mean "{meant}"?'


def test_unknown_setting_that_resembles_nothing_gets_no_suggestion(tmp_path: Path) -> None:
    assert problem(tmp_path, "[server]\nxyzzy = 1\n").reason == "unknown setting"


def test_name_of_a_network_cannot_be_set_inside_it(tmp_path: Path) -> None:
    found = problem(tmp_path, '[networks."base/mainnet"]\nchain = "other"\n')
    assert found.key == 'networks."base/mainnet".chain'
    assert found.reason.startswith("unknown setting")


@pytest.mark.parametrize(
    ("variable", "key", "meant"),
    [
        ("CAPSTAN_SERVER__PROT", "server.prot", "CAPSTAN_SERVER__PORT"),
        ("CAPSTAN_SERVER_PORT", "server_port", "CAPSTAN_SERVER__PORT"),
        ("CAPSTAN_DATADIR", "datadir", "CAPSTAN_DATA_DIR"),
        ("CAPSTAN_PLANS__GROTH__KEYS", "plans.groth.keys", "CAPSTAN_PLANS__GROWTH__KEYS"),
        (
            "CAPSTAN_NETWORKS__BASE_MAINNET__UPSTREAM",
            'networks."base/mainnet".upstream',
            "CAPSTAN_NETWORKS__BASE_MAINNET__UPSTREAMS",
        ),
    ],
)
def test_unknown_variable_gets_a_suggestion(tmp_path: Path, variable: str, key: str, meant: str) -> None:
    found = problem(tmp_path, environ={variable: "1"})
    assert found.source == f"environment variable {variable}"
    assert found.key == key
    assert found.reason == f'unknown setting; did you mean "{meant}"?'


def test_unknown_setting_of_the_command_line_gets_a_suggestion(tmp_path: Path) -> None:
    found = problem(tmp_path, overrides={"server.hots": "x"})
    assert (found.source, found.key) == ("command line", "server.hots")
    assert found.reason == 'unknown setting; did you mean "server.host"?'


def test_variables_of_others_and_those_kubernetes_sets_are_ignored(tmp_path: Path) -> None:
    environ = {
        "PATH": "/bin",
        "CAPSTANISH": "x",
        "CAPSTAN_SERVICE_HOST": "10.0.0.1",
        "CAPSTAN_SERVICE_PORT": "8080",
        "CAPSTAN_SERVICE_PORT_HTTP": "8080",
        "CAPSTAN_PORT": "tcp://10.0.0.1:8080",
        "CAPSTAN_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "CAPSTAN_PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    assert load(tmp_path, environ=environ) == load_settings(None, {})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("CAPSTAN_LOG__ACCESS", "FALSE", False),
        ("CAPSTAN_LOG__ACCESS", "on", True),
        ("CAPSTAN_SERVER__PORT", "9_000", 9000),
        ("CAPSTAN_ACCESS__POLL_SECONDS", "0.5", 0.5),
        ("CAPSTAN_ACCESS__POLL_SECONDS", "2", 2.0),
        ("CAPSTAN_STORAGE__URL", "sqlite:///tmp/x.db", "sqlite:///tmp/x.db"),
        ("CAPSTAN_SERVER__CORS_ORIGINS", '["https://a.example"]', ("https://a.example",)),
        ("CAPSTAN_SERVER__CORS_ORIGINS", "['https://a.example']", ("https://a.example",)),
        ("CAPSTAN_UNITS__OVERRIDES", '{"eth_call": 5}', {"eth_call": 5}),
        ("CAPSTAN_UNITS__OVERRIDES", "{eth_call = 5}", {"eth_call": 5}),
        ("CAPSTAN_MAIL__FROM", "x@example.com", "x@example.com"),
    ],
)
def test_variable_is_read_by_the_kind_of_its_setting(tmp_path: Path, name: str, text: str, value: object) -> None:
    settings: Any = load(tmp_path, environ={name: text})
    section, key = variable_path(name)
    assert getattr(getattr(settings, section), {"from": "from_"}.get(key, key)) == value


def test_whole_section_can_be_one_variable_and_a_single_one_wins_over_it(tmp_path: Path) -> None:
    environ = {"CAPSTAN_SERVER": '{"port": 1, "batch_limit": 5}', "CAPSTAN_SERVER__PORT": "2"}
    server = load(tmp_path, environ=environ).server
    assert (server.port, server.batch_limit, server.host) == (2, 5, "127.0.0.1")


@pytest.mark.parametrize(
    ("name", "text", "key", "reason"),
    [
        ("CAPSTAN_LOG__ACCESS", "maybe", "log.access", "must be true or false"),
        ("CAPSTAN_SERVER__PORT", "", "server.port", "must be an integer from 0 to 65535"),
        ("CAPSTAN_SERVER__PORT", "80.5", "server.port", "must be an integer from 0 to 65535"),
        ("CAPSTAN_SERVER__PORT", "65536", "server.port", "must be an integer from 0 to 65535, not 65536"),
        (
            "CAPSTAN_ACCESS__POLL_SECONDS",
            "soon",
            "access.poll_seconds",
            "must be a number above 0, at most 86400",
        ),
        (
            "CAPSTAN_SERVER__CORS_ORIGINS",
            "https://a.example",
            "server.cors_origins",
            "must be a list of texts, written as JSON or as a TOML value",
        ),
        (
            "CAPSTAN_SERVER__CORS_ORIGINS",
            '["a"]\nother = 1',
            "server.cors_origins",
            "must be a list of texts, written as JSON or as a TOML value",
        ),
        ("CAPSTAN_SERVER__CORS_ORIGINS", "5", "server.cors_origins", "must be a list of texts, not 5"),
        ("CAPSTAN_SERVER", "9000", "server", "must be a table"),
        ("CAPSTAN_NETWORKS", "[]", "networks", 'must be tables named "chain/network"'),
    ],
)
def test_wrong_variable_names_itself_its_setting_and_the_reason(
    tmp_path: Path, name: str, text: str, key: str, reason: str
) -> None:
    found = problem(tmp_path, environ={name: text})
    assert str(found) == f"environment variable {name}: {key}: {reason}"


def test_overrides_take_typed_values_text_and_paths_and_skip_none(tmp_path: Path) -> None:
    overrides = {
        "mode": "development",
        "data_dir": tmp_path / "data",
        "server.port": "9001",
        "server.host": None,
        "log.access": False,
        'networks."ethereum/devnet".entry_points': {"0.6": "0x" + "1" * 40},
        "networks.ethereum/devnet.upstreams": ["http://127.0.0.1:8545"],
    }
    settings = load(tmp_path, overrides=overrides)
    assert settings.development
    assert settings.data_path == tmp_path / "data"
    assert settings.storage_url == f"sqlite:///{tmp_path}/data/capstan.db"
    assert (settings.server.port, settings.server.host, settings.log.access) == (9001, "127.0.0.1", False)
    assert settings.catalogue().default_testnet("ethereum").entry_points == {"0.6": "0x" + "1" * 40}


def test_all_problems_of_all_sources_are_told_at_once(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        '[server]\nport = -1\nhots = ""\n',
        environ={"CAPSTAN_LOG__LEVEL": "loud"},
        overrides={"storage.pool_size": 0},
    )
    assert {(each.source, each.key) for each in found} == {
        (str(tmp_path / "my-capstan.toml"), "server.hots"),
        (str(tmp_path / "my-capstan.toml"), "server.port"),
        ("environment variable CAPSTAN_LOG__LEVEL", "log.level"),
        ("command line", "storage.pool_size"),
    }


def test_the_last_source_of_a_setting_is_the_one_named(tmp_path: Path) -> None:
    found = problem(tmp_path, "[server]\nport = 1\n", environ={"CAPSTAN_SERVER__PORT": "-1"})
    assert found.source == "environment variable CAPSTAN_SERVER__PORT"


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("server.port", ("server", "port")),
        ('networks."a/b".entry_points', ("networks", "a/b", "entry_points")),
        ("networks.a/b.chain_id", ("networks", "a/b", "chain_id")),
        ('networks."a/b".entry_points."0.6"', ("networks", "a/b", "entry_points", "0.6")),
    ],
)
def test_dotted_names_may_quote_their_parts(key: str, path: tuple[str, ...]) -> None:
    assert split_dotted(key) == path


@pytest.mark.parametrize("path", [*leaf_paths(), ("networks", "base/mainnet", "upstreams")])
def test_variable_name_leads_back_to_its_setting(path: tuple[str, ...]) -> None:
    assert variable_path(variable_name(path)) == path
    assert annotation_at(path) is not None


JSON_LISTS = st.lists(st.text(max_size=20), max_size=5)


@hypothesis_settings(deadline=None)
@given(JSON_LISTS)
def test_list_of_any_texts_survives_the_environment(values: list[str]) -> None:
    for text in (json.dumps(values), json.dumps(values, ensure_ascii=False)):
        layers = Layers()
        layers.add_environment({"CAPSTAN_SERVER__CORS_ORIGINS": text})
        assert layers.problems == []
        assert layers.values[("server", "cors_origins")].value == values


@hypothesis_settings(deadline=None)
@given(st.integers(0, 65535), st.booleans(), st.floats(0.001, 86_400), st.text(min_size=1, max_size=40))
def test_environment_says_the_same_as_typed_values(port: int, access: bool, poll: float, host: str) -> None:
    environ = {
        "CAPSTAN_SERVER__PORT": str(port),
        "CAPSTAN_SERVER__HOST": host,
        "CAPSTAN_LOG__ACCESS": str(access),
        "CAPSTAN_ACCESS__POLL_SECONDS": repr(poll),
        "CAPSTAN_ACCESS__MAX_STALENESS_SECONDS": "86400",
    }
    tables = {
        "server": {"port": port, "host": host},
        "log": {"access": access},
        "access": {"poll_seconds": poll, "max_staleness_seconds": 86400.0},
    }
    settings = load_settings(None, environ)
    assert settings == load_settings(None, {}, tables)
    assert (settings.server.port, settings.server.host) == (port, host)
    assert (settings.log.access, settings.access.poll_seconds) == (access, poll)


@hypothesis_settings(deadline=None)
@given(st.text())
def test_any_text_in_a_variable_is_a_value_or_a_told_problem(text: str) -> None:
    for path in (("server", "port"), ("log", "access"), ("units", "overrides"), ("plans", "free"), ("networks",)):
        layers = Layers()
        layers.add_environment({variable_name(path): text})
        assert layers.values or layers.networks or layers.problems or text.strip() in {"{}", "{ }"} or _is_empty(text)
        for each in layers.problems:
            assert each.source == f"environment variable {variable_name(path)}"


def _is_empty(text: str) -> bool:
    return not tomllib.loads(f"value = {text}")["value"]


def test_written_file_is_read_as_utf8(tmp_path: Path) -> None:
    assert load(tmp_path, 'data_dir = "größe"\n').data_dir == "größe"
