"""`capstan serve`: run the service with the configured networks."""

import gc
from typing import Annotated

import typer
import uvloop

from capstan.cli.common import ConfigOption, DataDirOption, load
from capstan.logs import configure_logs
from capstan.settings import LiveSettings

_NEW_OBJECTS = 20_000


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; overrides server.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; overrides server.port.")] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Run the service until SIGINT or SIGTERM. SIGHUP reloads networks, upstreams, plans and unit costs."""
    overrides: dict[str, object] = {}
    if host is not None:
        overrides["server.host"] = host
    if port is not None:
        overrides["server.port"] = port
    live = load(config, data_dir, **overrides)
    configure_logs(live.current.log.level, live.current.log.format)
    uvloop.run(_serve(live))


async def _serve(live: LiveSettings) -> None:
    # Loaded here: the other commands should not wait for the web framework.
    from capstan.app import Application

    async with Application.open(live) as application:
        # What is there now stays to the end. The collector of cycles, which takes tens of milliseconds to look at it
        # all, is spared that; this once it looks before anybody waits for an answer.
        gc.collect()
        gc.freeze()
        # Nothing of a request that ends well is part of a cycle, and what it leaves behind is kept on purpose. To look
        # after every 700 new objects, as is usual, would take a tenth of the time.
        gc.set_threshold(_NEW_OBJECTS, 20, 20)
        await application.run()
