"""`capstan webhooks`: list, test, replay, resume, disable and rotate webhooks, and read their log of attempts.

Works while the service runs, which takes up what is changed here within a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
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
from capstan.core.clock import SystemClock, iso
from capstan.settings import Settings
from capstan.wiring import open_database

if TYPE_CHECKING:
    from capstan.webhooks.models import Webhook
    from capstan.webhooks.operations import WebhookOperations

T = TypeVar("T")
app = typer.Typer(help="Look after webhooks.", no_args_is_help=True, rich_markup_mode=None)
WebhookArgument = Annotated[str, typer.Argument(help="The id of the webhook, wh_….")]


@app.command(name="list")
def list_webhooks(
    account: Annotated[str | None, typer.Option(help="Only those of this account.")] = None,
    status: Annotated[str | None, typer.Option(help="Only those that are active, paused or disabled.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 100,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List webhooks, the newest first."""
    found, _ = _run(config, data_dir, lambda operations: operations.page(account, status=status, limit=limit))
    if as_json:
        print_json([_view(each) for each in found])
        return
    rows = [(each.id, each.account_id, each.network, each.event_type, _status(each), each.url) for each in found]
    print_table(("ID", "ACCOUNT", "NETWORK", "EVENT", "STATUS", "URL"), rows, empty="There are no webhooks.")


@app.command()
def attempts(
    webhook_id: WebhookArgument,
    event: Annotated[str | None, typer.Option(help="Only those of this event, evt_….")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """The log of attempts, the newest first."""
    found = _run(config, data_dir, lambda operations: operations.attempts(webhook_id, event_id=event, limit=limit))
    if as_json:
        print_json(found)
        return
    rows = [
        (each.at, each.event_id, each.number, each.status or "-", f"{each.latency_ms} ms", each.state, each.error or "")
        for each in found
    ]
    columns = ("AT", "EVENT", "ATTEMPT", "STATUS", "LATENCY", "EVENT IS", "ERROR")
    print_table(columns, rows, empty="There were no attempts.")


@app.command(name="test")
def send_test(
    webhook_id: WebhookArgument,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a test event now, and tell what the receiver said."""
    outcome = _run(config, data_dir, lambda operations: operations.test(webhook_id))
    if as_json:
        shown = {"accepted": outcome.accepted, "status": outcome.status, "latency_ms": outcome.latency_ms}
        print_json({**shown, "error": outcome.error})
    else:
        typer.echo(outcome.error or f"The receiver answered {outcome.status} after {outcome.latency_ms} ms.")
    if not outcome.accepted:
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def replay(
    webhook_id: WebhookArgument,
    event: Annotated[str | None, typer.Option(help="This event, evt_….")] = None,
    since: Annotated[datetime | None, typer.Option(help="Events from this moment on (UTC).")] = None,
    until: Annotated[datetime | None, typer.Option(help="Events up to this moment (UTC).")] = None,
    from_block: Annotated[int | None, typer.Option(min=0, help="Events from this block on.")] = None,
    to_block: Annotated[int | None, typer.Option(min=0, help="Events up to this block.")] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver kept events again, under the same ids."""

    async def work(operations: WebhookOperations) -> int:
        return await operations.replay(
            webhook_id,
            event_id=event,
            since=since and since.replace(tzinfo=UTC),
            until=until and until.replace(tzinfo=UTC),
            from_block=from_block,
            to_block=to_block,
        )

    count = _run(config, data_dir, work)
    if as_json:
        print_json({"replayed": count})
    else:
        typer.echo(f"{count} events are delivered again.")


@app.command()
def resume(
    webhook_id: WebhookArgument,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a paused or disabled webhook active; what was kept is delivered."""
    _show(_run(config, data_dir, lambda operations: operations.resume(webhook_id)), as_json)


@app.command()
def disable(
    webhook_id: WebhookArgument,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop a webhook. Its owner cannot resume it."""
    _show(_run(config, data_dir, lambda operations: operations.disable(webhook_id)), as_json)


@app.command()
def rotate(
    webhook_id: WebhookArgument,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a webhook a new signing secret and print it. The old one signs too for 24 hours."""
    secret = _run(config, data_dir, lambda operations: operations.rotate(webhook_id))
    if as_json:
        print_json({"id": webhook_id, "signing_secret": secret})
    else:
        typer.echo(secret)


def _run(config: Path | None, data_dir: Path | None, work: Callable[[WebhookOperations], Coroutine[Any, Any, T]]) -> T:
    settings = load(config, data_dir).current
    quiet_logs(settings)
    return asyncio.run(_with_operations(settings, work))


async def _with_operations(settings: Settings, work: Callable[[WebhookOperations], Coroutine[Any, Any, T]]) -> T:
    # Loaded here: the other commands should not wait for the HTTP client.
    from capstan.outbound.client import GuardedClient
    from capstan.webhooks.delivery.sender import Sender
    from capstan.webhooks.operations import WebhookOperations
    from capstan.webhooks.sealing import Seal

    database = await open_database(settings)
    # A development service allows what its settings allow; the command is told by its data directory.
    develops = settings.development or (settings.data_path / "dev.json").exists()
    client = GuardedClient(allow_http=develops, allow_loopback=develops)
    try:
        seal, clock = Seal.open(settings.webhooks.secret_key, settings.data_path), SystemClock()
        sender = Sender(client, seal, clock, seconds=settings.webhooks.timeout_seconds)
        return await work(WebhookOperations(database, seal, sender, clock))
    finally:
        await client.close()
        await database.close()


def _show(webhook: Webhook, as_json: bool) -> None:
    if as_json:
        print_json(_view(webhook))
    else:
        typer.echo(f"{webhook.id} is {webhook.status}.")


def _status(webhook: Webhook) -> str:
    return webhook.status if webhook.reason is None else f"{webhook.status} ({webhook.reason})"


def _view(webhook: Webhook) -> dict[str, Any]:
    shown = msgspec.structs.asdict(webhook)
    del shown["config"]
    return {**shown, "created_at": iso(webhook.created_at), "updated_at": iso(webhook.updated_at)}
