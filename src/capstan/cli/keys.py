"""`capstan keys`: create, list and revoke API keys. Works while the service runs."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from capstan.access.models import ApiKey, IssuedKey, Mode, Plan, Scope
from capstan.access.service import AccessService
from capstan.cli.common import ConfigOption, DataDirOption, JsonOption, print_json, print_table, with_access
from capstan.core.clock import iso

app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True, rich_markup_mode=None)


class PlanName(StrEnum):
    """The plans of the command line."""

    FREE = "free"
    GROWTH = "growth"
    ENTERPRISE = "enterprise"


class ModeName(StrEnum):
    """The modes of the command line."""

    LIVE = "live"
    TEST = "test"


@app.command()
def create(
    mode: Annotated[ModeName, typer.Option(help="live: every network. test: test networks only.")] = ModeName.TEST,
    plan: Annotated[PlanName, typer.Option(help="Plan of the account made for the key.")] = PlanName.FREE,
    account: Annotated[str | None, typer.Option(help="Add the key to this account instead of a new one.")] = None,
    scope: Annotated[
        list[Scope] | None, typer.Option(help="Restrict the key; repeat for several. Default: all scopes.")
    ] = None,
    name: Annotated[str, typer.Option(help="A name to tell keys apart.")] = "command line",
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key and print it. It is shown this once and stored only as a hash."""

    async def work(service: AccessService) -> IssuedKey:
        account_id = account
        if account_id is None:
            account_id = (await service.create_account(name, _plan(plan))).id
        return await service.create_key(account_id, name=name, mode=_mode(mode), scopes=scope or None)

    issued = with_access(config, data_dir, work, may_create=True)
    if as_json:
        print_json({"key": issued.secret, **_view(issued.key)})
        return
    typer.echo(issued.secret)
    typer.echo(f"id {issued.key.id}, account {issued.key.account_id}. Keep the key: it is not shown again.", err=True)


@app.command(name="list")
def list_keys(
    account: Annotated[str | None, typer.Option(help="Only the keys of this account.")] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List keys, never their secrets."""
    keys = with_access(config, data_dir, lambda service: service.keys(account))
    if as_json:
        print_json([_view(key) for key in keys])
        return
    rows = [
        (
            key.id,
            f"svc_{key.mode}_…{key.hint}",
            key.account_id,
            key.name,
            "all" if key.scopes is None else ",".join(key.scopes),
            iso(key.created_at),
            iso(key.last_used_at) if key.last_used_at else "never",
            f"revoked {iso(key.revoked_at)}" if key.revoked_at else "active",
        )
        for key in keys
    ]
    columns = ("ID", "KEY", "ACCOUNT", "NAME", "SCOPES", "CREATED", "LAST USED", "STATE")
    print_table(columns, rows, empty="There are no keys. Make one with: capstan keys create")


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The id of the key, key_…, not the key itself.")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a key for good. Every running process refuses it within a second."""
    key = with_access(config, data_dir, lambda service: service.revoke_key(key_id))
    if as_json:
        print_json(_view(key))
    else:
        typer.echo(f"{key.id} is revoked.")


def _view(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "account": key.account_id,
        "name": key.name,
        "mode": key.mode,
        "hint": key.hint,
        "scopes": sorted(Scope) if key.scopes is None else list(key.scopes),
        "created_at": iso(key.created_at),
        "last_used_at": iso(key.last_used_at) if key.last_used_at else None,
        "revoked_at": iso(key.revoked_at) if key.revoked_at else None,
    }


def _plan(plan: PlanName) -> Plan:
    return plan.value


def _mode(mode: ModeName) -> Mode:
    return mode.value
