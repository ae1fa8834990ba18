"""`capstan accounts invite` and `forget-second-factor`: who may sign in. Works while the service runs."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from capstan.access.models import Plan
from capstan.access.plans import PlanBook
from capstan.access.service import AccessService
from capstan.access.store import AccessStore
from capstan.cli.accounts import app as app
from capstan.cli.common import ConfigOption, DataDirOption, JsonOption, load, print_json, quiet_logs
from capstan.cli.devfile import DEV_FILE
from capstan.cli.keys import PlanName
from capstan.core.clock import SystemClock
from capstan.settings import Settings
from capstan.signin.building import build_sign_in
from capstan.signin.service import SignIn
from capstan.webhooks.sealing import Seal
from capstan.wiring import open_database, public_origin

Work = Callable[[SignIn, AccessService], Coroutine[Any, Any, Any]]
EmailArgument = Annotated[str, typer.Argument(help="The e-mail address of the person.")]


@app.command()
def invite(
    email: EmailArgument,
    account: Annotated[str | None, typer.Option(help="The account to join, acc_…. Default: a new one.")] = None,
    operator: Annotated[bool, typer.Option("--operator", help="Let the person look after the whole service.")] = False,
    plan: Annotated[PlanName, typer.Option(help="The plan of a new account.")] = PlanName.FREE,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Invite somebody to the dashboard: print the link, which works once within seven days, and mail it."""

    async def work(people: SignIn, access: AccessService) -> dict[str, Any]:
        chosen: Plan = "enterprise" if operator else plan.value
        joined = await (access.account(account) if account else access.create_account(email, chosen))
        link = await people.invite(joined, email, "operator" if operator else "member")
        return {"email": email, "account": joined.id, "role": "operator" if operator else "member", "link": link}

    made = _run(config, data_dir, work)
    if as_json:
        print_json(made)
    else:
        typer.echo(made["link"])
        typer.echo(f"{email} joins {made['account']} with it. It works once, within seven days.", err=True)


@app.command(name="forget-second-factor")
def forget_second_factor(
    email: EmailArgument,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let somebody who lost their authenticator app sign in with the password alone."""

    async def work(people: SignIn, _access: AccessService) -> dict[str, Any]:
        return {"email": email, "forgotten": await people.forget_totp(email)}

    done = _run(config, data_dir, work)
    if as_json:
        print_json(done)
    else:
        typer.echo("Done." if done["forgotten"] else "No second factor was asked for.")


def _run(config: Path | None, data_dir: Path | None, work: Work) -> Any:
    settings = load(config, data_dir).current
    quiet_logs(settings)
    return asyncio.run(_with_people(settings, _origin(settings), work))


async def _with_people(settings: Settings, origin: str, work: Work) -> Any:
    database = await open_database(settings)
    try:
        clock = SystemClock()
        seal = Seal.open(settings.webhooks.secret_key, settings.data_path)
        access = AccessService(AccessStore(database), clock, key_limit=PlanBook(settings.plans.get).key_limit)
        return await work(build_sign_in(settings, database, clock, seal, origin=origin), access)
    finally:
        await database.close()


def _origin(settings: Settings) -> str:
    """The address of the service: that of the settings, or of the `capstan dev` that runs on this directory."""
    running = settings.data_path / DEV_FILE
    if not running.exists():
        return public_origin(settings)
    document: dict[str, Any] = msgspec.json.decode(running.read_bytes())
    return str(document["base_url"]).removesuffix("/v1")
