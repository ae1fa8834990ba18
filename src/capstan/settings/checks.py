"""Rules of the settings that one value's type cannot express: addresses, ranges that depend on each other.

`check` is called once by `build` with settings that are otherwise complete. It reports every violation and changes
nothing. Messages never repeat a secret: of an address with credentials only the scheme is named.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import Protocol, get_args
from urllib.parse import SplitResult, urlsplit

from capstan.catalogue.agreement import agreeable, can_agree
from capstan.core.hexes import is_address
from capstan.core.money import parse_price
from capstan.settings.errors import suggestion
from capstan.settings.model import NetworkSettings, Role, Settings, Upstream

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LEAST_TOKEN = 16
_ROLES = get_args(Role)
_PRIVATE_KEY = re.compile(r"0x[0-9a-fA-F]{64}")
_TOKEN = re.compile(r"[a-z0-9-]+/[a-z0-9-]+:(?:0x[0-9a-fA-F]{40}|native)")


class Report(Protocol):
    """Takes one violation: the path of the setting, the reason, and which part of its value is meant."""

    def __call__(self, path: tuple[str, ...], reason: str, within: str = "") -> None: ...


def check(settings: Settings, report: Report) -> None:
    """Report every rule that the settings break."""
    for rule in _RULES:
        rule(settings, report)


def _server(settings: Settings, report: Report) -> None:
    server = settings.server
    if server.public_url:
        reason = _address_fault(server.public_url, ("http", "https"))
        parts = None if reason else urlsplit(server.public_url)
        if parts is not None and (parts.query or parts.fragment or "@" in parts.netloc):
            reason = "must hold no query, fragment or credentials"
        if reason:
            report(("server", "public_url"), reason)
    for index, origin in enumerate(server.cors_origins):
        if origin != "*" and not _is_origin(origin):
            reason = f'must be "*" or an origin such as "https://app.example.com", not "{origin}"'
            report(("server", "cors_origins"), reason, f"[{index}]")
    for index, proxy in enumerate(server.trusted_proxies):
        try:
            ipaddress.ip_network(proxy)
        except ValueError:
            reason = f'must be an IP address or a CIDR range without host bits, not "{proxy}"'
            report(("server", "trusted_proxies"), reason, f"[{index}]")
    if server.operator_token and len(server.operator_token) < _LEAST_TOKEN:
        report(("server", "operator_token"), f"must have at least {_LEAST_TOKEN} characters, or be empty")
    if server.metrics_port and server.metrics_port == server.port and server.metrics_host == server.host:
        report(("server", "metrics_port"), "must differ from server.port, or be 0")


def _storage(settings: Settings, report: Report) -> None:
    url = settings.storage.url
    parts = _split(url)
    reason = None
    if url == "sqlite":
        parts = None
    elif parts is None:
        reason = 'must be "sqlite", "sqlite:///path" or "postgresql://user:password@host/database"'
    elif parts.scheme == "sqlite":
        if parts.netloc or parts.path in {"", "/", "/:memory:"}:
            reason = 'must name a file with three slashes: "sqlite:///path"'
    elif parts.scheme == "postgresql":
        if not (parts.hostname or "host=" in parts.query) or not parts.path.strip("/"):
            reason = 'must name a host and a database: "postgresql://user:password@host/database"'
    else:
        reason = f'must begin with sqlite:/// or postgresql://, not "{parts.scheme}:"'
    if reason:
        report(("storage", "url"), reason)
    if settings.storage.pgbouncer and (parts is None or parts.scheme != "postgresql"):
        report(("storage", "pgbouncer"), "is only for PostgreSQL")


def _process(settings: Settings, report: Report) -> None:
    process = settings.process
    roles, several = ("process", "roles"), process.workers > 1
    if not process.roles or len(set(process.roles)) != len(process.roles):
        report(roles, f"must name at least one of {', '.join(_ROLES)}, each once")
        return
    if several and "api" not in process.roles:
        report(("process", "workers"), "is the number of processes with the role api, which process.roles leaves out")
    partial = len(process.roles) < len(_ROLES)
    if not partial and not several:
        return
    cause = ("process", "workers") if several else roles
    if not settings.storage.url.startswith("postgresql:"):
        what = "several processes" if several else "a process with some of the roles"
        report(cause, f"{what} need PostgreSQL: set storage.url, or run one process with all roles on SQLite")
    if several and not settings.redis.url:
        report(cause, "several processes share the limits of accounts in Redis or Valkey: set redis.url")
    if not settings.webhooks.secret_key and {"api", "deliverer"} & set(process.roles):
        report(cause, "several processes must agree on the key of webhook secrets: set webhooks.secret_key")


def _redis(settings: Settings, report: Report) -> None:
    url = settings.redis.url
    if not url:
        if settings.redis.cluster:
            report(("redis", "cluster"), "needs redis.url")
        return
    parts = _split(url)
    if parts is not None and parts.scheme == "unix":
        reason = None if parts.path.strip("/") else 'must name a socket: "unix:///path"'
    else:
        reason = _address_fault(url, ("redis", "rediss", "unix"))
    if reason:
        report(("redis", "url"), reason)


def _mail(settings: Settings, report: Report) -> None:
    mail = settings.mail
    if mail.smtp_url:
        reason = _address_fault(mail.smtp_url, ("smtp", "smtps"))
        if reason:
            report(("mail", "smtp_url"), reason)
        if not mail.from_:
            report(("mail", "from"), "must be set when mail.smtp_url is")
    if mail.from_ and not re.fullmatch(r"[^@\s]+@[^@\s]+|.*<[^@\s]+@[^@\s]+>", mail.from_):
        report(("mail", "from"), f'must be a mail address, not "{mail.from_}"')
    for place, address in enumerate(mail.operators):
        if not re.fullmatch(r"[^@\s]+@[^@\s]+", address):
            report(("mail", "operators"), f'must be a mail address, not "{address}"', f"[{place}]")


def _timing(settings: Settings, report: Report) -> None:
    if settings.access.max_staleness_seconds < settings.access.poll_seconds:
        report(("access", "max_staleness_seconds"), "must be at least access.poll_seconds")
    if settings.upstreams.connect_timeout_seconds > settings.upstreams.timeout_seconds:
        report(("upstreams", "connect_timeout_seconds"), "must be at most upstreams.timeout_seconds")


def _units(settings: Settings, report: Report) -> None:
    for name in settings.units.overrides:
        if not re.fullmatch(r"[A-Za-z0-9._]+|[a-z0-9]+_\*", name):
            report(("units", "overrides"), 'must be a method, or a namespace such as "debug_*"', f'."{name}"')


def _data(settings: Settings, report: Report) -> None:
    for key in ("ipfs_gateways", "arweave_gateways"):
        for index, url in enumerate(getattr(settings.nfts, key)):
            if reason := _address_fault(url, ("http", "https")):
                report(("nfts", key), reason, f"[{index}]")
    sources = {
        ("prices", "http_url"): settings.prices.http_url,
        ("nfts", "floor_http_url"): settings.nfts.floor_http_url,
    }
    for place, url in sources.items():
        if url and (reason := _address_fault(url, ("http", "https"))):
            report(place, reason)
    for name, price in settings.prices.fixed.items():
        if not _TOKEN.fullmatch(name):
            report(("prices", "fixed"), 'must be "chain/network:0x…" or "chain/network:native"', f'."{name}"')
        try:
            parse_price(price)
        except ValueError as error:
            report(("prices", "fixed"), f"{error}, written as text", f'."{name}"')
    for index, name in enumerate(settings.prices.trusted_vaults):
        if not _TOKEN.fullmatch(name) or name.endswith(":native"):
            report(("prices", "trusted_vaults"), 'must be "chain/network:0x…"', f"[{index}]")


def _bundler(settings: Settings, report: Report) -> None:
    bundler = settings.bundler
    for index, signer in enumerate(bundler.signers):
        if not signer.startswith("keystore:") and not _PRIVATE_KEY.fullmatch(signer):
            reason = 'must be a private key (0x and 64 hex digits), or "keystore:" and the path of a file'
            report(("bundler", "signers"), reason, f"[{index}]")
    if bundler.beneficiary and not is_address(bundler.beneficiary):
        report(("bundler", "beneficiary"), "must be an address, or empty")
    for key in ("never_limited", "always_banned"):
        for index, address in enumerate(getattr(bundler, key)):
            if not is_address(address):
                report(("bundler", key), "must be an address", f"[{index}]")


def _networks(settings: Settings, report: Report) -> None:
    for network in settings.networks.values():
        for index, upstream in enumerate(network.upstreams):
            for key, reason in _upstream_faults(upstream):
                report(("networks", network.name, "upstreams"), reason, f"[{index}].{key}")
        names = [upstream.name for upstream in network.upstreams if upstream.name]
        for name in sorted({name for name in names if names.count(name) > 1}):
            report(("networks", network.name, "upstreams"), f'two upstreams have the name "{name}"')
        addresses = [upstream.url.lower() for upstream in network.upstreams]
        if network.family == "solana" and addresses and all(url.startswith(("ws:", "wss:")) for url in addresses):
            reason = (
                "needs an upstream with http:// or https://: the WebSocket of a Solana node only takes subscriptions"
            )
            report(("networks", network.name, "upstreams"), reason)
        for method, reason in _quorum_faults(network):
            report(("networks", network.name, "quorum"), reason, f".{method}")


def _quorum_faults(network: NetworkSettings) -> Iterable[tuple[str, str]]:
    for method, rule in network.quorum.items():
        if not can_agree(network.family, method):
            close = suggestion(method, agreeable(network.family))
            yield method, f"is not a read that nodes of {network.name} can agree on{close}"
        if rule.agree > rule.of:
            yield method, f"must have agree at most of: {rule.agree} of {rule.of} cannot agree"
        elif 2 * rule.agree <= rule.of:
            yield method, f"must have agree above half of of: with {rule.agree} of {rule.of} two answers could both win"
        if network.upstreams and rule.of > len(network.upstreams):
            yield method, f"asks {rule.of} upstreams, but the network has {len(network.upstreams)}"


def _upstream_faults(upstream: Upstream) -> Iterable[tuple[str, str]]:
    reason = _address_fault(upstream.url, ("http", "https", "ws", "wss"))
    if reason:
        yield "url", reason
    for name, value in upstream.headers.items():
        if not _HEADER_NAME.fullmatch(name):
            yield f'headers."{name}"', "is not the name of an HTTP header"
        elif not value.isprintable() or value != value.strip():
            yield f'headers."{name}"', "must hold printable characters only, without spaces around them"
    if upstream.connect_timeout_seconds > upstream.timeout_seconds:
        yield "connect_timeout_seconds", "must be at most timeout_seconds"


def _address_fault(url: str, schemes: tuple[str, ...]) -> str | None:
    """What is wrong with an address that must name a host, without repeating it."""
    expected = " or ".join((", ".join(f"{scheme}://" for scheme in schemes[:-1]), f"{schemes[-1]}://"))
    parts = _split(url)
    if parts is None or parts.scheme not in schemes:
        given = f', not "{parts.scheme}:"' if parts is not None and parts.scheme else ""
        return f"must begin with {expected}{given}"
    if not parts.hostname or any(character.isspace() for character in url):
        return "must name a host"
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        return "must have a port from 1 to 65535"
    if "@" in parts.path:
        return 'has an "@" behind the host: write "/" and "@" of a password as %2F and %40'
    return None


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return parts if parts.scheme and f"{parts.scheme}://" in url.lower() else None


def _is_origin(text: str) -> bool:
    parts = _split(text)
    return (
        _address_fault(text, ("http", "https")) is None
        and parts is not None
        and text == f"{parts.scheme}://{parts.netloc}"
        and "@" not in parts.netloc
    )


_RULES: tuple[Callable[[Settings, Report], None], ...] = (
    _server,
    _storage,
    _process,
    _redis,
    _mail,
    _timing,
    _units,
    _data,
    _bundler,
    _networks,
)
