"""`capstan networks`: what is known, what is served, and whether the upstreams answer as they should."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capstan.cli.common import (
    ConfigOption,
    DataDirOption,
    ExitCode,
    JsonOption,
    load,
    print_json,
    print_table,
    quiet_logs,
)
from capstan.settings import Settings
from capstan.wiring import network_specs

if TYPE_CHECKING:
    from capstan.chain.check import UpstreamCheck

app = typer.Typer(help="List networks and check their upstreams.", no_args_is_help=True, rich_markup_mode=None)


@app.command(name="list")
def list_networks(
    every: Annotated[bool, typer.Option("--all", help="Also those without an upstream.")] = False,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the networks that are served, or all that are known."""
    settings = load(config, data_dir).current
    catalogue = settings.catalogue()
    served = {network.name: network for network in settings.served.values()}
    rows: list[dict[str, Any]] = [
        {
            "name": network.name,
            "chain_id": network.chain_id,
            "kind": network.kind,
            "family": network.family,
            "upstreams": [upstream.label for upstream in served[network.name].upstreams]
            if network.name in served
            else [],
        }
        for network in catalogue
        if every or network.name in served
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("NETWORK", "CHAIN ID", "KIND", "FAMILY", "UPSTREAMS"),
        [(*list(row.values())[:4], ", ".join(row["upstreams"]) or "-") for row in rows],
        empty="No network is served. Add upstreams in capstan.toml; see all known networks with --all.",
    )


@app.command()
def check(config: ConfigOption = None, data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """Ask every upstream for its chain id and head. Exits with 1 when one is away or on another chain."""
    settings = load(config, data_dir).current
    quiet_logs(settings)
    results = asyncio.run(check_settings(settings))
    if as_json:
        print_json(results)
    else:
        rows = [
            (result.network, result.upstream, result.head if result.head is not None else "-", result.problem or "ok")
            for result in results
        ]
        print_table(("NETWORK", "UPSTREAM", "HEAD", "RESULT"), rows, empty="No network is served.")
    if any(result.problem for result in results):
        raise typer.Exit(ExitCode.FAILED)


async def check_settings(settings: Settings) -> "list[UpstreamCheck]":
    """Check every upstream of the settings at once."""
    # Loaded here: the other commands should not wait for the HTTP client.
    from capstan.chain.check import check_upstreams
    from capstan.chain.upstream import open_session

    session = open_session()
    try:
        chain_ids = {name: network.chain_id for name, network in settings.served.items()}
        genesis = {name: network.genesis_hash for name, network in settings.served.items()}
        return await check_upstreams(network_specs(settings), session, chain_ids=chain_ids, genesis=genesis)
    finally:
        await session.close()
