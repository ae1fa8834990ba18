"""The settings as typed, frozen structs. One struct per section of `defaults.toml`.

Every part of Capstan that needs a setting is handed one of these by the composition root. The structs carry no
defaults for what `defaults.toml` holds, and no rules beyond the range of one value: rules that span values are in
`checks`. To add a setting, add it here and, with a comment, in `defaults.toml`; the tests name what is missing.

Printing a struct never shows a secret: the fields marked `SECRET…` are hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from capstan.catalogue.networks import Network, Networks, builtin_networks
from capstan.catalogue.units import Cost, UnitTable, load_units
from capstan.settings.bundler import Bundler
from capstan.settings.dashboard import Dashboard
from capstan.settings.data import Index, Nfts, Prices, Tokens
from capstan.settings.gas import Gas
from capstan.settings.redaction import SECRET, SECRET_BEYOND_HOST, SECRET_PASSWORD, SECRET_VALUES
from capstan.settings.section import (
    Count,
    Port,
    PositiveCount,
    Seconds,
    SecondsOrNone,
    Section,
    Share,
    ShareOrNone,
    Text,
)
from capstan.settings.webhooks import Webhooks

Mode = Literal["production", "development"]
Role = Literal["api", "follower", "deliverer", "bundler"]
MethodPattern = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9]+(_[A-Za-z0-9]+)*(_?\*)?$", extra={"plural": 'methods such as "eth_call" or "debug_*"'}),
]


class Server(Section, frozen=True):
    """The public port."""

    host: Text
    port: Port
    public_url: str
    body_limit_bytes: PositiveCount
    batch_limit: PositiveCount
    header_timeout_seconds: Seconds
    body_timeout_seconds: Seconds
    keep_alive_seconds: Seconds
    request_timeout_seconds: Seconds
    shutdown_grace_seconds: SecondsOrNone
    max_connections: PositiveCount
    cors_origins: tuple[str, ...]
    trusted_proxies: tuple[str, ...]
    operator_token: Annotated[str, SECRET]
    metrics_host: Text
    metrics_port: Port


class Process(Section, frozen=True):
    """What this process does."""

    roles: tuple[Role, ...]
    workers: Annotated[int, Meta(ge=1, le=256)]


class Log(Section, frozen=True):
    """Log output."""

    level: Literal["debug", "info", "warning", "error"]
    format: Literal["json", "console"]
    access: bool


class Storage(Section, frozen=True):
    """The database."""

    url: Annotated[str, SECRET_PASSWORD]
    pool_size: Annotated[int, Meta(ge=1, le=1000)]
    pool_timeout_seconds: Seconds
    statement_timeout_seconds: Seconds
    pgbouncer: bool


class Redis(Section, frozen=True):
    """Shared counters and messages."""

    url: Annotated[str, SECRET_PASSWORD]
    cluster: bool
    connect_timeout_seconds: Seconds
    command_timeout_seconds: Seconds
    retry_seconds: Seconds


class Access(Section, frozen=True):
    """API keys and accounts."""

    poll_seconds: Seconds
    max_staleness_seconds: Seconds
    cache_entries: PositiveCount
    last_used_flush_seconds: Seconds


class Limits(Section, frozen=True):
    """Limits outside the plans."""

    anonymous_requests_per_second: PositiveCount
    anonymous_requests_per_day: Count
    day_reservation_share: PositiveCount


class Plan(Section, frozen=True):
    """What the accounts of one plan may use; 0 is unlimited."""

    requests_per_second: Count
    requests_per_day: Count
    units_per_second: Count
    deliveries_per_day: Count
    webhooks: Count
    wallets: Count
    policies: Count
    keys: Count


class Plans(Section, frozen=True):
    """The three plans."""

    free: Plan
    growth: Plan
    enterprise: Plan

    def get(self, name: str) -> Plan:
        """The plan of that name. Raises `KeyError`, naming it, for any other."""
        if name not in self.__struct_fields__:
            raise KeyError(f'unknown plan "{name}"; there are {", ".join(self.__struct_fields__)}')
        plan: Plan = getattr(self, name)
        return plan


class Units(Section, frozen=True):
    """Prices of calls in compute units."""

    overrides: dict[Annotated[str, Meta(min_length=1)], Cost]
    archive_factor: Annotated[int, Meta(ge=1, le=1000)]
    archive_depth: PositiveCount

    def table(self) -> UnitTable:
        """The built-in prices with these changes."""
        return load_units(archive_factor=self.archive_factor, overrides=self.overrides)


class UpstreamDefaults(Section, frozen=True):
    """What every upstream starts from."""

    timeout_seconds: Seconds
    connect_timeout_seconds: Seconds
    max_response_bytes: PositiveCount
    connections: Annotated[int, Meta(ge=1, le=10_000)]
    weight: Annotated[int, Meta(ge=1, le=1_000_000)]
    tier: Annotated[int, Meta(ge=0, le=100)]
    archive: bool
    methods_allow: tuple[MethodPattern, ...]
    methods_deny: tuple[MethodPattern, ...]
    requests_per_second: Count


class Cache(Section, frozen=True):
    """Answers of the RPC gateway that are kept."""

    memory_bytes: Annotated[int, Meta(ge=1_048_576)]
    disk_bytes: Count
    redis_seconds: Annotated[int, Meta(ge=0, le=366 * 86_400)]
    redis_value_bytes: PositiveCount


class Usage(Section, frozen=True):
    """The record of what each key used."""

    minute_days: Annotated[int, Meta(ge=1, le=3660)]
    days: Annotated[int, Meta(ge=1, le=36_600)]


class Feed(Section, frozen=True):
    """The WebSocket feed."""

    sockets: PositiveCount
    sockets_per_key: PositiveCount
    subscriptions_per_socket: PositiveCount
    message_bytes: PositiveCount
    send_buffer_bytes: Annotated[int, Meta(ge=65_536)]
    calls_in_flight: PositiveCount
    refusals: PositiveCount
    grace_seconds: Seconds
    replay_blocks: PositiveCount
    handshake_seconds: Seconds
    ping_seconds: Seconds
    pong_seconds: Seconds
    close_seconds: Seconds
    idle_seconds: Seconds


class Upstream(UpstreamDefaults, frozen=True):
    """One upstream node of a network, complete."""

    url: Annotated[
        str,
        SECRET_BEYOND_HOST,
        Meta(description="Address of the node: http, https, ws or wss. Only scheme and host are ever shown."),
    ]
    name: Annotated[str, Meta(description="Name in logs and metrics; empty: the host.")] = ""
    headers: Annotated[
        dict[str, str], SECRET_VALUES, Meta(description="Headers sent with every request, such as authorization.")
    ] = msgspec.field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name for logs and metrics. Holds no secret."""
        return self.name or urlsplit(self.url).netloc.rpartition("@")[2]


class NetworkDefaults(Section, frozen=True):
    """What every network starts from."""

    extra_namespaces: tuple[Literal["debug", "trace", "txpool"], ...]
    max_log_blocks: Count
    deadline_seconds: Seconds
    hedge: bool
    hedge_quantile: Share
    hedge_share: ShareOrNone
    broadcast: Annotated[int, Meta(ge=1, le=100)]
    verify: bool
    verify_log_blocks: Annotated[int, Meta(ge=1, le=100_000)]
    index: Literal["auto", "full", "on_demand", "off"]
    index_from_block: Count
    bundler_unsafe: bool
    debug_bundler: bool


class Quorum(Section, frozen=True):
    """How many upstreams must give the same answer to a method."""

    agree: Annotated[int, Meta(ge=2, le=100)]
    of: Annotated[int, Meta(ge=2, le=100)]


class NetworkSettings(Network, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One network as this server is told to serve it: the catalogue's facts, the operator's changes, the upstreams."""

    extra_namespaces: Annotated[
        tuple[Literal["debug", "trace", "txpool"], ...],
        Meta(description="Namespaces of node methods open to callers."),
    ]
    max_log_blocks: Annotated[Count, Meta(description="Most blocks one eth_getLogs call may span; 0: unlimited.")]
    deadline_seconds: Annotated[Seconds, Meta(description="The longest a call may take, all its attempts together.")]
    hedge: Annotated[bool, Meta(description="Whether a read that is slow at one upstream is given to a second one.")]
    hedge_quantile: Annotated[Share, Meta(description="What is slow: longer than this share of the latest answers.")]
    hedge_share: Annotated[ShareOrNone, Meta(description="Most reads given to a second upstream, as a share of all.")]
    broadcast: Annotated[
        int, Meta(ge=1, le=100, description="To how many upstreams a signed transaction is given at once.")
    ]
    verify: Annotated[bool, Meta(description="Whether blocks, receipts and logs are checked against their block.")]
    verify_log_blocks: Annotated[
        int, Meta(ge=1, le=100_000, description="Most blocks one eth_getLogs call may span where `verify` is on.")
    ]
    index: Annotated[
        Literal["auto", "full", "on_demand", "off"],
        Meta(description="Which token and NFT transfers are indexed (EVM)."),
    ]
    index_from_block: Annotated[Count, Meta(description="The first block whose transfers are indexed.")]
    bundler_unsafe: Annotated[bool, Meta(description="Whether operations are only simulated, not checked by ERC-7562.")]
    debug_bundler: Annotated[bool, Meta(description="Whether the `debug_bundler_*` methods are there. For tests only.")]
    quorum: Annotated[
        dict[Text, Annotated[Quorum, Meta(extra={"plural": "rules such as { agree = 2, of = 3 }"})]],
        Meta(description="Methods whose answer several upstreams must agree on: method = { agree = 2, of = 3 }."),
    ]
    upstreams: Annotated[
        tuple[Upstream, ...], Meta(description="The nodes to ask: addresses, or tables with the keys of an upstream.")
    ]


class Mail(Section, frozen=True):
    """Outgoing mail."""

    smtp_url: Annotated[str, SECRET_PASSWORD]
    from_: str = msgspec.field(name="from")
    operators: tuple[str, ...]
    timeout_seconds: Seconds


class Settings(Section, frozen=True):
    """Everything that can be set."""

    mode: Mode
    data_dir: Text
    process: Process
    server: Server
    log: Log
    storage: Storage
    redis: Redis
    access: Access
    limits: Limits
    plans: Plans
    units: Units
    upstreams: UpstreamDefaults
    network_defaults: NetworkDefaults
    cache: Cache
    feed: Feed
    index: Index
    tokens: Tokens
    nfts: Nfts
    prices: Prices
    bundler: Bundler
    gas: Gas
    webhooks: Webhooks
    usage: Usage
    dashboard: Dashboard
    mail: Mail
    networks: dict[str, NetworkSettings]

    @property
    def development(self) -> bool:
        """Whether this is development mode."""
        return self.mode == "development"

    @property
    def data_path(self) -> Path:
        """The data directory."""
        return Path(self.data_dir)

    @property
    def storage_url(self) -> str:
        """The database address, with the word `sqlite` replaced by the file in the data directory."""
        if self.storage.url != "sqlite":
            return self.storage.url
        return f"sqlite:///{self.data_path.absolute() / 'capstan.db'}"

    @property
    def served(self) -> Mapping[str, NetworkSettings]:
        """The networks that have an upstream, by name."""
        return {name: network for name, network in self.networks.items() if network.upstreams}

    def catalogue(self) -> Networks:
        """The built-in networks with the operator's changes and additions, knowing which are served."""
        known: dict[str, Network] = {network.name: network for network in builtin_networks()}
        for flag in ("default_testnet", "default_in_development"):
            taken = {entry.chain for entry in self.networks.values() if getattr(entry, flag)}
            for name, network in known.items():
                if network.chain in taken and getattr(network, flag):
                    known[name] = msgspec.structs.replace(network, **{flag: False})
        known.update(self.networks)
        return Networks(known.values(), served=self.served, development=self.development)


RELOADABLE = frozenset({"networks", "network_defaults", "upstreams", "plans", "units"})
"""The top-level settings that `LiveSettings.reload` swaps in a running process. All others need a restart."""
