"""Every value is held to its kind, its range and the rules it shares with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from capstan.settings import load_settings

from .support import load, problem, problems


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ('mode = "test"', "mode", 'must be "development" or "production", not "test"'),
        ('data_dir = ""', "data_dir", 'must be a text that is not empty, not ""'),
        ("server = 5", "server", "must be a table"),
        ("[server]\nport = 65536", "server.port", "must be an integer from 0 to 65535, not 65536"),
        ('[server]\nport = "80"', "server.port", 'must be an integer from 0 to 65535, not "80"'),
        ("[server]\nport = true", "server.port", "must be an integer from 0 to 65535, not true"),
        ("[server]\nport = 80.0", "server.port", "must be an integer from 0 to 65535, not 80.0"),
        ("[server]\nhost = 5", "server.host", "must be a text that is not empty, not 5"),
        (
            "[server]\nheader_timeout_seconds = 0",
            "server.header_timeout_seconds",
            "must be a number above 0, at most 86400, not 0",
        ),
        (
            "[server]\nrequest_timeout_seconds = nan",
            "server.request_timeout_seconds",
            "must be a number above 0, at most 86400, not NaN",
        ),
        (
            "[server]\nrequest_timeout_seconds = inf",
            "server.request_timeout_seconds",
            "must be a number above 0, at most 86400, not Infinity",
        ),
        (
            "[server]\nshutdown_grace_seconds = -1",
            "server.shutdown_grace_seconds",
            "must be a number from 0 to 86400, not -1",
        ),
        ("[server]\nbody_limit_bytes = 0", "server.body_limit_bytes", "must be an integer of at least 1, not 0"),
        ("[server]\ncors_origins = 'x'", "server.cors_origins", 'must be a list of texts, not "x"'),
        ("[server]\ncors_origins = [1]", "server.cors_origins", "must be a list of texts, not [1]"),
        ("[log]\nlevel = 1979-05-27", "log.level", 'must be "debug", "error", "info" or "warning", not 1979-05-27'),
        ("[log]\naccess = 1", "log.access", "must be true or false, not 1"),
        ("[storage]\npool_size = 0", "storage.pool_size", "must be an integer from 1 to 1000, not 0"),
        ("[plans.free]\nkeys = -1", "plans.free.keys", "must be an integer of at least 0, not -1"),
        ("[plans]\nfree = 3", "plans.free", "must be a table"),
        ("[units]\narchive_factor = 0", "units.archive_factor", "must be an integer from 1 to 1000, not 0"),
        (
            "[units.overrides]\neth_call = -1",
            "units.overrides",
            'must be a table of integers from 0 to 1000000, not {"eth_call": -1}',
        ),
        ("[upstreams]\nweight = 0", "upstreams.weight", "must be an integer from 1 to 1000000, not 0"),
        (
            '[upstreams]\nmethods_deny = ["eth call"]',
            "upstreams.methods_deny",
            'must be a list of methods such as "eth_call" or "debug_*", not ["eth call"]',
        ),
        (
            '[network_defaults]\nextra_namespaces = ["admin"]',
            "network_defaults.extra_namespaces",
            'must be a list of "debug", "trace" and "txpool", not ["admin"]',
        ),
    ],
)
def test_value_of_the_wrong_kind_or_range_is_refused(tmp_path: Path, text: str, key: str, reason: str) -> None:
    found = problem(tmp_path, text + "\n")
    assert str(found) == f"{tmp_path / 'my-capstan.toml'}: {key}: {reason}"


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        (
            '[server]\npublic_url = "api.example.com"',
            "server.public_url",
            "must begin with http:// or https://",
        ),
        (
            '[server]\npublic_url = "ftp://api.example.com"',
            "server.public_url",
            'must begin with http:// or https://, not "ftp:"',
        ),
        (
            '[server]\npublic_url = "https://api.example.com?x=1"',
            "server.public_url",
            "must hold no query, fragment or credentials",
        ),
        (
            '[server]\ncors_origins = ["https://a.example", "https://b.example/path"]',
            "server.cors_origins[1]",
            'must be "*" or an origin such as "https://app.example.com", not "https://b.example/path"',
        ),
        (
            '[server]\ntrusted_proxies = ["10.0.0.1/8"]',
            "server.trusted_proxies[0]",
            'must be an IP address or a CIDR range without host bits, not "10.0.0.1/8"',
        ),
        (
            '[server]\noperator_token = "short"',
            "server.operator_token",
            "must have at least 16 characters, or be empty",
        ),
        (
            "[server]\nport = 9000\nmetrics_port = 9000",
            "server.metrics_port",
            "must differ from server.port, or be 0",
        ),
        (
            '[storage]\nurl = "mysql://user:secret@host/db"',
            "storage.url",
            'must begin with sqlite:/// or postgresql://, not "mysql:"',
        ),
        (
            '[storage]\nurl = "postgres://user:secret@host/db"',
            "storage.url",
            'must begin with sqlite:/// or postgresql://, not "postgres:"',
        ),
        (
            '[storage]\nurl = "capstan.db"',
            "storage.url",
            'must be "sqlite", "sqlite:///path" or "postgresql://user:password@host/database"',
        ),
        (
            '[storage]\nurl = ""',
            "storage.url",
            'must be "sqlite", "sqlite:///path" or "postgresql://user:password@host/database"',
        ),
        (
            '[storage]\nurl = "sqlite://capstan.db"',
            "storage.url",
            'must name a file with three slashes: "sqlite:///path"',
        ),
        (
            '[storage]\nurl = "sqlite:///:memory:"',
            "storage.url",
            'must name a file with three slashes: "sqlite:///path"',
        ),
        (
            '[storage]\nurl = "postgresql://host"',
            "storage.url",
            'must name a host and a database: "postgresql://user:password@host/database"',
        ),
        (
            '[redis]\nurl = "http://host"',
            "redis.url",
            'must begin with redis://, rediss:// or unix://, not "http:"',
        ),
        ('[redis]\nurl = "redis://host:0"', "redis.url", "must have a port from 1 to 65535"),
        ('[redis]\nurl = "unix:///"', "redis.url", 'must name a socket: "unix:///path"'),
        ("[redis]\ncluster = true", "redis.cluster", "needs redis.url"),
        (
            '[mail]\nsmtp_url = "mail.example.com"\nfrom = "a@example.com"',
            "mail.smtp_url",
            "must begin with smtp:// or smtps://",
        ),
        ('[mail]\nsmtp_url = "smtp://mail.example.com"', "mail.from", "must be set when mail.smtp_url is"),
        ('[mail]\nfrom = "nobody"', "mail.from", 'must be a mail address, not "nobody"'),
        (
            "[access]\npoll_seconds = 60",
            "access.max_staleness_seconds",
            "must be at least access.poll_seconds",
        ),
        (
            "[upstreams]\nconnect_timeout_seconds = 11",
            "upstreams.connect_timeout_seconds",
            "must be at most upstreams.timeout_seconds",
        ),
        (
            '[units.overrides]\n"eth call" = 1',
            'units.overrides."eth call"',
            'must be a method, or a namespace such as "debug_*"',
        ),
        (
            '[nfts]\nipfs_gateways = ["https://ipfs.io", "ipfs.io"]',
            "nfts.ipfs_gateways[1]",
            "must begin with http:// or https://",
        ),
        (
            '[nfts]\narweave_gateways = ["ftp://x"]',
            "nfts.arweave_gateways[0]",
            'must begin with http:// or https://, not "ftp:"',
        ),
        ('[prices]\nhttp_url = "coins"', "prices.http_url", "must begin with http:// or https://"),
        ('[prices.fixed]\n"CAP" = "1"', 'prices.fixed."CAP"', 'must be "chain/network:0x…" or "chain/network:native"'),
        (
            '[prices.fixed]\n"ethereum/devnet:native" = "free"',
            'prices.fixed."ethereum/devnet:native"',
            "a price is a positive decimal number such as 1.25, written as text",
        ),
        (
            '[prices]\ntrusted_vaults = ["ethereum/devnet:native"]',
            "prices.trusted_vaults[0]",
            'must be "chain/network:0x…"',
        ),
    ],
)
def test_rule_beyond_a_single_value_is_enforced(tmp_path: Path, text: str, key: str, reason: str) -> None:
    found = problem(tmp_path, text + "\n")
    assert (found.key, found.reason) == (key, reason)


@pytest.mark.parametrize(
    "text",
    [
        "[server]\nport = 0\nshutdown_grace_seconds = 0",
        '[server]\npublic_url = "https://example.com/capstan"\ncors_origins = ["*", "http://localhost:3000"]',
        '[server]\ntrusted_proxies = ["10.0.0.0/8", "::1", "fd00::/8", "192.0.2.7"]',
        '[server]\nport = 9000\nmetrics_port = 9000\nmetrics_host = "127.0.0.2"',
        '[storage]\nurl = "sqlite:////var/lib/capstan.db"',
        '[storage]\nurl = "sqlite:///relative.db"',
        '[storage]\nurl = "postgresql://user:p%40ss@host:5432/db?sslmode=require"',
        '[storage]\nurl = "postgresql:///db?host=/run/postgresql"',
        '[redis]\nurl = "rediss://:secret@host:6380/1"\ncluster = true',
        '[redis]\nurl = "unix:///run/redis.sock"',
        '[mail]\nsmtp_url = "smtps://user:pw@mail.example.com:465"\nfrom = "Capstan <capstan@example.com>"',
        '[units.overrides]\n"debug_*" = 9\n"rest.list" = 4\neth_call = 0',
        '[upstreams]\nmethods_allow = ["eth_call", "debug_*", "getBlock"]',
        "[access]\npoll_seconds = 30",
    ],
)
def test_good_value_is_accepted(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text + "\n") != load_settings(None, {})


@pytest.mark.parametrize(
    "text",
    [
        '[storage]\nurl = "mysql://user:hunter2hunter2@host/db"',
        '[storage]\nurl = "postgresql://user:hunter2hunter2@host"',
        '[storage]\nurl = ["hunter2hunter2"]',
        '[redis]\nurl = "redis://:hunter2hunter2@host:99999"',
        '[redis]\nurl = "hunter2hunter2"',
        '[mail]\nsmtp_url = "smtp://u:hunter2/hunter2@host"\nfrom = "a@b.example"',
        '[server]\noperator_token = ["hunter2hunter2"]',
        '[networks."base/mainnet"]\nupstreams = ["ftp://host/hunter2hunter2"]',
        '[networks."base/mainnet"]\nupstreams = ["hunter2hunter2"]',
        '[networks."base/mainnet"]\nupstreams = [{url = ["hunter2hunter2"]}]',
        '[networks."base/mainnet"]\nupstreams = [{url = "http://a", headers = {authorization = ["hunter2hunter2"]}}]',
        '[networks."base/mainnet"]\nupstreams = [{url = "http://a", headers = {authorization = "hunter2\\nhunter2"}}]',
        '[networks."base/mainnet"]\nupstreams = "https://host/hunter2hunter2"',
    ],
)
def test_refusal_never_repeats_a_secret(tmp_path: Path, text: str) -> None:
    for found in problems(tmp_path, text + "\n"):
        assert "hunter2" not in str(found)


def test_broken_secret_in_a_variable_is_not_repeated(tmp_path: Path) -> None:
    for name in ("CAPSTAN_NETWORKS", "CAPSTAN_NETWORKS__BASE_MAINNET__UPSTREAMS", "CAPSTAN_SERVER"):
        assert "hunter2" not in str(problem(tmp_path, environ={name: '["https://host/hunter2"'}))


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        ('signers = ["0x1234"]', "bundler.signers[0]", "must be a private key"),
        ('beneficiary = "me"', "bundler.beneficiary", "must be an address"),
        ('always_banned = ["0x12"]', "bundler.always_banned[0]", "must be an address"),
        ("bump_percent = 9", "bundler.bump_percent", "must be an integer from 10"),
    ],
)
def test_settings_of_the_bundler_are_checked_and_no_key_is_repeated(
    tmp_path: Path, text: str, name: str, reason: str
) -> None:
    found = problem(tmp_path, f"[bundler]\n{text}\n")
    assert f": {name}: {reason}" in str(found)
    assert "0x1234" not in str(found)
