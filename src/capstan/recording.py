"""Builds the record of usage, and the port on which the numbers of the process can be read.

Called by the composition root, of which it is a part: it names concrete classes and connects them.
"""

from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry, start_http_server

from capstan.bundler.debug import DEBUG
from capstan.bundler.methods import STANDARD
from capstan.core.clock import Clock
from capstan.feed.models import PUSH_METHOD
from capstan.rpc.methods import is_known_name
from capstan.settings import Settings
from capstan.sponsoring import PAYMASTER_METHODS
from capstan.storage.database import Database
from capstan.usage.ledger import UsageLedger
from capstan.usage.recorder import UsageRecorder
from capstan.usage.writer import Retention

_OUR_METHODS = frozenset({PUSH_METHOD, *STANDARD, *DEBUG, *PAYMASTER_METHODS})


async def open_usage(
    settings: Settings, database: Database, clock: Clock, metrics: CollectorRegistry, stack: AsyncExitStack
) -> UsageRecorder:
    """The recorder of usage, started; the stack stops it."""
    retention = Retention(minute_hours=24 * settings.usage.minute_days, days=settings.usage.days)
    usage = UsageRecorder(UsageLedger(database), clock, metrics, known=_is_known_name, retention=retention)
    await usage.start()
    stack.push_async_callback(usage.close)
    return usage


def open_metrics_port(settings: Settings, metrics: CollectorRegistry, stack: AsyncExitStack) -> None:
    """Serve /metrics on a port of its own, where one is set, until the stack ends it."""
    if settings.server.metrics_port:
        server, thread = start_http_server(settings.server.metrics_port, settings.server.metrics_host, registry=metrics)
        stack.callback(thread.join, 5)
        stack.callback(server.shutdown)


def _is_known_name(name: str) -> bool:
    """Whether a name in the usage ledger is ours: a method of the tables, or `GET /v1/…` with a route of ours."""
    return " /" in name or name in _OUR_METHODS or is_known_name(name)
