"""Builds from the settings what both the service and the short commands need: the database and the network specs.

Kept apart from the composition root so that `capstan keys` need not load the web framework. It decides nothing.
"""

from capstan.chain.models import NetworkSpec, UpstreamSpec
from capstan.settings import Settings
from capstan.storage.database import Database, DatabaseOptions
from capstan.storage.migrate import require_current, upgrade


def database_options(settings: Settings) -> DatabaseOptions:
    """How to reach the configured database."""
    return DatabaseOptions(
        url=settings.storage_url,
        pool_size=settings.storage.pool_size,
        pool_timeout_seconds=settings.storage.pool_timeout_seconds,
        statement_timeout_seconds=settings.storage.statement_timeout_seconds,
    )


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
                )
                for upstream in network.upstreams
            ),
            block_time_ms=network.block_time_ms,
            finality_depth=network.finality_depth or None,
            deadline_seconds=min(network.deadline_seconds, settings.server.request_timeout_seconds),
            eip1559=network.eip1559,
            method_groups=frozenset(network.extra_namespaces),
            dev_methods=settings.development and network.default_in_development,
            max_log_range=network.max_log_blocks or None,
        )
        for network in settings.served.values()
    ]
