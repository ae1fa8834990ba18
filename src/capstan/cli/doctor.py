"""`capstan doctor`: looks at everything the service depends on and says what to do about what is wrong."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec
import typer
from sqlalchemy import text

from capstan.cli.common import ConfigOption, DataDirOption, ExitCode, JsonOption, load, print_json, quiet_logs
from capstan.cli.networks import check_settings
from capstan.settings import LiveSettings, Settings
from capstan.storage.database import Database
from capstan.storage.errors import StorageError
from capstan.storage.migrate import code_revision, database_revision
from capstan.wiring import database_options

_CLOCK_TOLERANCE_SECONDS = 5.0
_CHECK_SECONDS = 15.0
# Block producers may stamp a block a little ahead of time.
_HEAD_TOLERANCE_SECONDS = 15.0
_MARKS = {"ok": "ok  ", "warning": "warn", "failed": "FAIL"}


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    check: str
    state: Literal["ok", "warning", "failed"]
    message: str


def doctor(config: ConfigOption = None, data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """Check settings, database, Redis, upstreams, signers, paymasters and clock.

    Exits with 1 when something has to be mended.
    """
    live = load(config, data_dir)
    quiet_logs(live.current)
    findings = asyncio.run(_examine(live))
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            typer.echo(f"{_MARKS[finding.state]}  {finding.check}: {finding.message}")
    if any(finding.state == "failed" for finding in findings):
        raise typer.Exit(ExitCode.FAILED)


async def _examine(live: LiveSettings) -> list[Finding]:
    settings = live.current
    checks: list[tuple[str, Callable[[Settings], Awaitable[list[Finding]]]]] = [
        ("data directory", _data_directory),
        ("database", _database),
        ("redis", _redis),
        ("upstreams", _upstreams),
        ("signers", _signers),
        ("paymasters", _paymasters),
    ]
    source = str(live.config_file) if live.config_file else "defaults and environment only"
    findings = [Finding("settings", "ok", f"read from {source}; mode {settings.mode}")]
    for name, check in checks:
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                findings += await check(settings)
        except TimeoutError:
            findings.append(Finding(name, "failed", f"no answer within {_CHECK_SECONDS:g} s"))
    return findings


async def _data_directory(settings: Settings) -> list[Finding]:
    path = settings.data_path
    nearest = next((part for part in (path, *path.absolute().parents) if part.exists()), path)
    if not os.access(nearest, os.W_OK):
        return [Finding("data directory", "failed", f"{path} cannot be written; change data_dir or its permissions")]
    return [Finding("data directory", "ok", str(path))]


async def _database(settings: Settings) -> list[Finding]:
    database = Database(database_options(settings))
    try:
        revision = await database_revision(database)
        findings = [_schema(database, revision)]
        if not database.is_sqlite:
            async with database.read() as connection:
                theirs = await connection.scalar(text("SELECT extract(epoch FROM clock_timestamp())"))
            findings.append(_clock("database", float(theirs or 0)))
        return findings
    except StorageError as error:
        return [Finding("database", "failed", f"{database.display_url}: {error}; check storage.url and the server")]
    finally:
        await database.close()


def _schema(database: Database, revision: str | None) -> Finding:
    wanted = code_revision()
    if revision == wanted:
        return Finding("database", "ok", f"{database.display_url} at schema {revision}")
    if database.is_sqlite and revision is None:
        return Finding("database", "ok", f"{database.display_url} is empty; it is set up at the first start")
    state = f"{database.display_url} is at schema {revision or 'none'}, this version needs {wanted}"
    return Finding("database", "failed", f"{state}; run: capstan migrate")


async def _redis(settings: Settings) -> list[Finding]:
    if not settings.redis.url:
        return [Finding("redis", "ok", "not used; limits are counted in each process")]
    # Loaded here: the other commands should not wait for the Redis client.
    from capstan.limits.redis import connect

    client = connect(
        settings.redis.url,
        cluster=settings.redis.cluster,
        connect_timeout=settings.redis.connect_timeout_seconds,
        command_timeout=settings.redis.command_timeout_seconds,
    )
    try:
        seconds, micros = await client.time()
    except Exception as error:
        return [Finding("redis", "failed", f"did not answer ({type(error).__name__}); check redis.url and the server")]
    finally:
        await client.aclose()
    return [Finding("redis", "ok", "answers"), _clock("redis", seconds + micros / 1_000_000)]


async def _upstreams(settings: Settings) -> list[Finding]:
    if not settings.served:
        return [Finding("upstreams", "warning", "no network is served; add upstreams to capstan.toml")]
    results = await check_settings(settings)
    findings = [
        Finding(f"upstream {result.network} {result.upstream}", "failed", result.problem)
        if result.problem
        else Finding(f"upstream {result.network} {result.upstream}", "ok", f"head {result.head}")
        for result in results
    ]
    newest = max((result.head_time for result in results if result.head_time is not None), default=None)
    if newest is not None:
        ahead = newest - time.time()
        behind = ahead > _HEAD_TOLERANCE_SECONDS
        findings.append(
            Finding("clock", "failed", f"is {ahead:.0f} s behind the newest block; synchronise it (NTP)")
            if behind
            else Finding("clock", "ok", "is not behind the newest block")
        )
    return findings


async def _signers(settings: Settings) -> list[Finding]:
    if not settings.bundler.signers:
        return [Finding("signers", "ok", "none: the bundler accepts no operations; set bundler.signers")]
    # Loaded here: the other commands should not wait for the libraries that sign.
    from capstan.cli.signers import signer_balances

    return [Finding(name, state, message) for name, state, message in await signer_balances(settings)]


async def _paymasters(settings: Settings) -> list[Finding]:
    # Loaded here: the other commands should not wait for the libraries that sign.
    from capstan.cli.paymasters import paymaster_findings

    return [Finding(name, state, message) for name, state, message in await paymaster_findings(settings)]


def _clock(other: str, theirs: float) -> Finding:
    difference = time.time() - theirs
    if abs(difference) > _CLOCK_TOLERANCE_SECONDS:
        return Finding("clock", "failed", f"differs from the {other} by {difference:+.1f} s; synchronise it (NTP)")
    return Finding("clock", "ok", f"agrees with the {other} to {abs(difference):.1f} s")
