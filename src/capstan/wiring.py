"""Builds from the settings what both the service and the short commands need: the database and the network specs.

Kept apart from the composition root so that `capstan keys` need not load the web framework. It decides nothing.
"""

from sqlalchemy import select

from capstan.chain.models import Integrity, NetworkSpec, Quorum, UpstreamSpec
from capstan.settings import NetworkSettings, Settings
from capstan.storage.database import Database, DatabaseOptions
from capstan.storage.migrate import require_current, upgrade
from capstan.storage.schema import access_version


def database_options(settings: Settings) -> DatabaseOptions:
    """How to reach the configured database."""
    return DatabaseOptions(
        url=settings.storage_url,
        pool_size=settings.storage.pool_size,
        pool_timeout_seconds=settings.storage.pool_timeout_seconds,
        statement_timeout_seconds=settings.storage.statement_timeout_seconds,
        pgbouncer=settings.storage.pgbouncer,
    )


def public_origin(settings: Settings, port: int | None = None) -> str:
    """The address that clients use, without a path. `port` is the one in use, which the settings may leave open."""
    server = settings.server
    if server.public_url:
        return server.public_url.rstrip("/")
    host = "127.0.0.1" if server.host in ("0.0.0.0", "::") else server.host  # noqa: S104 - compared, not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{server.port if port is None else port}"


async def open_database(settings: Settings) -> Database:
    """The configured database at the schema of this code. SQLite is migrated here; PostgreSQL by `capstan migrate`."""
    database = Database(database_options(settings))
    try:
        if database.is_sqlite:
            await upgrade(database)
        else:
            await require_current(database)
    except BaseException:
        await database.close()
        raise
    return database


async def ping(database: Database) -> None:
    """Ask the database something. A real table: a file that is damaged still answers SELECT 1."""
    async with database.read() as connection:
        await connection.execute(select(access_version.c.version))


def network_specs(settings: Settings) -> list[NetworkSpec]:
    """What the chain package needs to know of every network that is served."""
    return [
        NetworkSpec(
            chain=network.chain,
            network=network.network,
            family=network.family,
            upstreams=tuple(
                UpstreamSpec(
                    name=upstream.label,
                    url=upstream.url,
                    headers=tuple(sorted(upstream.headers.items())),
                    timeout_seconds=upstream.timeout_seconds,
                    connect_timeout_seconds=upstream.connect_timeout_seconds,
                    max_response_bytes=upstream.max_response_bytes,
                    weight=upstream.weight,
                    tier=upstream.tier,
                    archive=upstream.archive,
                    methods_allow=upstream.methods_allow,
                    methods_deny=upstream.methods_deny,
                    requests_per_second=upstream.requests_per_second,
                    connections=upstream.connections,
                    hedge=network.hedge,
                    hedge_quantile=network.hedge_quantile,
                )
                for upstream in network.upstreams
            ),
            block_time_ms=network.block_time_ms,
            finality_depth=network.finality_depth or None,
            deadline_seconds=min(network.deadline_seconds, settings.server.request_timeout_seconds),
            eip1559=network.eip1559,
            method_groups=frozenset(network.extra_namespaces),
            dev_methods=settings.development and network.default_in_development,
            max_log_range=_max_log_range(network),
            broadcast=network.broadcast,
            hedge_share=network.hedge_share,
            integrity=_integrity(network),
        )
        for network in settings.served.values()
    ]


def _max_log_range(network: NetworkSettings) -> int | None:
    """The widest range of one eth_getLogs. Where logs are checked, every block of it costs calls."""
    if network.verify and network.family == "evm":
        return min(network.max_log_blocks or network.verify_log_blocks, network.verify_log_blocks)
    return network.max_log_blocks or None


def _integrity(network: NetworkSettings) -> Integrity | None:
    verify = network.verify and network.family == "evm"
    if not verify and not network.quorum:
        return None
    quorum = {method: Quorum(rule.agree, rule.of) for method, rule in network.quorum.items()}
    return Integrity(quorum=quorum, verify=verify, proofs=frozenset(network.block_proofs))
