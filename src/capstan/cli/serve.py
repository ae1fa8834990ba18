"""`capstan serve`: run the service with the configured networks."""

import asyncio
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
    roles: Annotated[
        str | None,
        typer.Option(help="What it does: api, follower, deliverer, bundler, with commas; overrides process.roles."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that answer requests; overrides process.workers.")
    ] = None,
    lifeline: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the service until SIGINT or SIGTERM. SIGHUP reloads networks, upstreams, plans and unit costs."""
    overrides: dict[str, object] = {}
    if host is not None:
        overrides["server.host"] = host
    if port is not None:
        overrides["server.port"] = port
    if roles is not None:
        overrides["process.roles"] = [role.strip() for role in roles.split(",")]
    if workers is not None:
        overrides["process.workers"] = workers
    live = load(config, data_dir, **overrides)
    configure_logs(live.current.log.level, live.current.log.format)
    if live.current.process.workers == 1:
        uvloop.run(_serve(live, lifeline))
        return
    from capstan.cli.supervisor import supervise

    arguments: list[str] = []
    if config is not None:
        arguments += ["--config", str(config)]
    if data_dir is not None:
        arguments += ["--data-dir", str(data_dir)]
    raise typer.Exit(supervise(live.current, arguments))


async def _serve(live: LiveSettings, lifeline: int | None) -> None:
    # Loaded here: the other commands should not wait for the web framework.
    from capstan.app import Application
    from capstan.cli.supervisor import Lifeline

    supervised = None if lifeline is None else Lifeline(lifeline)
    stop = asyncio.Event()

    async def watch(line: Lifeline) -> None:
        await line.wait_cut()
        stop.set()

    watching = None if supervised is None else asyncio.create_task(watch(supervised), name="lifeline")
    async with Application.open(live, shared_port=supervised is not None) as application:
        # What is there now stays to the end. The collector of cycles, which takes tens of milliseconds to look at it
        # all, is spared that; this once it looks before anybody waits for an answer.
        gc.collect()
        gc.freeze()
        # Nothing of a request that ends well is part of a cycle, and what it leaves behind is kept on purpose. To look
        # after every 700 new objects, as is usual, would take a tenth of the time.
        gc.set_threshold(_NEW_OBJECTS, 20, 20)
        await application.run(on_started=None if supervised is None else supervised.ready, stop=stop)
    if watching is not None:
        watching.cancel()
