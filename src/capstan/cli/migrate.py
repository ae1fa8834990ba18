"""`capstan migrate`: bring the database to the schema of this code."""

import asyncio

import typer

from capstan.cli.common import ConfigOption, DataDirOption, JsonOption, load, print_json, quiet_logs
from capstan.settings import Settings
from capstan.storage.database import Database
from capstan.storage.migrate import upgrade
from capstan.wiring import database_options


def migrate(config: ConfigOption = None, data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """Bring the database to the schema of this version. Safe to run twice; refuses a newer database."""
    settings = load(config, data_dir).current
    quiet_logs(settings)
    address, before, after = asyncio.run(_migrate(settings))
    if as_json:
        print_json({"database": address, "before": before, "after": after})
    elif before == after:
        typer.echo(f"{address} is at schema {after} already.")
    else:
        typer.echo(f"{address}: schema {before or 'none'} -> {after}.")


async def _migrate(settings: Settings) -> tuple[str, str | None, str]:
    database = Database(database_options(settings))
    try:
        before, after = await upgrade(database)
        return database.display_url, before, after
    finally:
        await database.close()
