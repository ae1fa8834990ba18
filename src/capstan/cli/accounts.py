"""`capstan accounts`: create, list, change, suspend and resume accounts. Works while the service runs."""

from typing import Annotated, Any

import msgspec
import typer

from capstan.access.models import Account, Overrides
from capstan.access.service import AccessService
from capstan.cli.common import ConfigOption, DataDirOption, JsonOption, print_json, print_table, with_access
from capstan.cli.keys import PlanName
from capstan.core.clock import iso

app = typer.Typer(help="Create, list and suspend accounts.", no_args_is_help=True, rich_markup_mode=None)

AccountArgument = Annotated[str, typer.Argument(help="The id of the account, acc_….")]
_Own = Annotated[int | None, typer.Option(min=0, help="Own limit instead of the plan's; 0 means none.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="A name to tell accounts apart.")],
    plan: Annotated[PlanName, typer.Option(help="The plan whose limits hold.")] = PlanName.FREE,
    requests_per_second: _Own = None,
    requests_per_day: _Own = None,
    units_per_second: _Own = None,
    deliveries_per_day: _Own = None,
    webhooks: _Own = None,
    wallets: _Own = None,
    policies: _Own = None,
    keys: _Own = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create an account. Limits that are not given are the plan's."""
    overrides = Overrides(
        requests_per_second=requests_per_second,
        requests_per_day=requests_per_day,
        units_per_second=units_per_second,
        deliveries_per_day=deliveries_per_day,
        webhooks=webhooks,
        wallets=wallets,
        policies=policies,
        keys=keys,
    )

    async def work(service: AccessService) -> Account:
        return await service.create_account(name, plan.value, overrides)

    account = with_access(config, data_dir, work, may_create=True)
    if as_json:
        print_json(_view(account))
    else:
        typer.echo(f"{account.id}\nGive it a key with: capstan keys create --account {account.id}")


@app.command(name="list")
def list_accounts(config: ConfigOption = None, data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """List accounts."""
    accounts = with_access(config, data_dir, lambda service: service.accounts())
    if as_json:
        print_json([_view(account) for account in accounts])
        return
    rows = [
        (account.id, account.name, account.plan, account.status, _own_limits(account), iso(account.created_at))
        for account in accounts
    ]
    columns = ("ID", "NAME", "PLAN", "STATUS", "OWN LIMITS", "CREATED")
    print_table(columns, rows, empty="There are no accounts. Make one with: capstan accounts create NAME")


@app.command()
def suspend(
    account_id: AccountArgument,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Suspend an account: all its keys get 403 within a second. Nothing is deleted."""
    _set_suspended(account_id, True, config, data_dir, as_json)


@app.command()
def resume(
    account_id: AccountArgument,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Lift the suspension of an account."""
    _set_suspended(account_id, False, config, data_dir, as_json)


def _set_suspended(
    account_id: str, suspended: bool, config: ConfigOption, data_dir: DataDirOption, as_json: bool
) -> None:
    account = with_access(config, data_dir, lambda service: service.set_suspended(account_id, suspended))
    if as_json:
        print_json(_view(account))
    else:
        typer.echo(f"{account.id} is {account.status}.")


def _own_limits(account: Account) -> str:
    own = _overrides(account)
    return ", ".join(f"{name}={value}" for name, value in own.items()) or "-"


def _overrides(account: Account) -> dict[str, Any]:
    own = msgspec.structs.asdict(account.overrides)
    return {name: value for name, value in own.items() if value is not None}


def _view(account: Account) -> dict[str, Any]:
    return {
        "id": account.id,
        "name": account.name,
        "plan": account.plan,
        "status": account.status,
        "limits": _overrides(account),
        "created_at": iso(account.created_at),
    }
