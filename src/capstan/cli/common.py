"""What the commands share: options, settings, an opened database, output for people and for scripts."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from capstan.access.plans import PlanBook
from capstan.access.service import AccessService
from capstan.access.store import AccessStore
from capstan.core.clock import SystemClock
from capstan.logs import configure_logs
from capstan.settings import LiveSettings, Settings
from capstan.wiring import open_database

T = TypeVar("T")

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Settings file. Default: $CAPSTAN_CONFIG, else ./capstan.toml.")
]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Directory of the embedded database; overrides data_dir.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


class ExitCode(IntEnum):
    """What the exit status means."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    SETTINGS = 3
    AWAY = 4


def complain(message: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"capstan: {message}\n")


def load(config: Path | None, data_dir: Path | None, **overrides: object) -> LiveSettings:
    """The settings a command runs with."""
    chosen = dict(overrides)
    if data_dir is not None:
        chosen["data_dir"] = str(data_dir)
    return LiveSettings(config, os.environ, chosen)


def quiet_logs(settings: Settings) -> None:
    """Logging of the short commands: only what is wrong."""
    configure_logs("warning", settings.log.format)


@asynccontextmanager
async def access_service(settings: Settings) -> AsyncIterator[AccessService]:
    """The access service on the configured database."""
    database = await open_database(settings)
    try:
        plans = PlanBook(settings.plans.get)
        yield AccessService(AccessStore(database), SystemClock(), key_limit=plans.key_limit)
    finally:
        await database.close()


def with_access(
    config: Path | None,
    data_dir: Path | None,
    work: Callable[[AccessService], Coroutine[Any, Any, T]],
    *,
    may_create: bool = False,
) -> T:
    """Run `work` with the access service. Only commands that make something may make the database, too."""
    settings = load(config, data_dir).current
    quiet_logs(settings)
    missing = _missing_database(settings)
    if missing is not None and not may_create:
        complain(f"there is no database at {missing}; check --data-dir, or start the service first")
        raise typer.Exit(ExitCode.AWAY)
    if missing is not None:
        complain(f"making a new database at {missing}")

    async def run() -> T:
        async with access_service(settings) as service:
            return await work(service)

    return asyncio.run(run())


def _missing_database(settings: Settings) -> str | None:
    """The embedded database file that ought to be there and is not."""
    prefix = "sqlite:///"
    if not settings.storage_url.startswith(prefix):
        return None
    path = Path(settings.storage_url.removeprefix(prefix))
    return None if path.exists() else str(path)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Aligned columns on standard output, or a sentence when there is nothing."""
    if not rows:
        typer.echo(empty)
        return
    texts = [[str(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(len(row[index]) for row in texts) for index in range(len(columns))]
    for row in texts:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
