"""`capstan gas paymaster`: deploys, funds, stakes and empties the paymasters that pay for sponsored operations."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from capstan.cli.common import ConfigOption, DataDirOption, JsonOption, load, print_json, quiet_logs
from capstan.core.decimals import ETHER_DECIMALS, parse_units
from capstan.core.errors import InvalidRequest
from capstan.core.hexes import is_address

if TYPE_CHECKING:
    from capstan.cli.paymasters import Paymasters
    from capstan.userops.versions import Version

T = TypeVar("T")

app = typer.Typer(help="Gas sponsorship.", no_args_is_help=True, rich_markup_mode=None)
paymaster_app = typer.Typer(
    help="Deploy, fund and stake paymasters with the key gas.owner.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(paymaster_app, name="paymaster")

_Network = Annotated[str, typer.Argument(help="The network, such as ethereum/sepolia.")]
_Version = Annotated[str, typer.Option("--entry-point", help="The version of the entry point.")]
_Amount = Annotated[str, typer.Argument(help="In whole coins, such as 0.5.")]


@paymaster_app.command()
def deploy(
    network: _Network,
    entry_point: _Version = "0.8",
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deploy a paymaster whose signer is gas.signer and whose owner is gas.owner."""
    address = _run(config, data_dir, network, lambda paymasters: paymasters.deploy(_version(entry_point)))
    if as_json:
        print_json({"network": network, "entry_point": entry_point, "paymaster": address})
        return
    typer.echo(f'deployed at {address}; put it into your settings:\n\n[networks."{network}".paymasters]')
    typer.echo(f'"{entry_point}" = "{address}"')


@paymaster_app.command()
def deposit(
    network: _Network,
    amount: _Amount,
    entry_point: _Version = "0.8",
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put coins into the deposit from which operations are paid."""
    wei, version = _wei(amount), _version(entry_point)
    _tell(_run(config, data_dir, network, lambda paymasters: paymasters.deposit(version, wei)), as_json)


@paymaster_app.command()
def stake(
    network: _Network,
    amount: _Amount,
    entry_point: _Version = "0.8",
    unstake_seconds: Annotated[
        int, typer.Option("--unstake-seconds", help="How long the stake stays locked.", min=1, max=2**32 - 1)
    ] = 86_400,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Lock a stake at the entry point, as bundlers ask of paymasters that read storage."""
    wei, version = _wei(amount), _version(entry_point)
    _tell(_run(config, data_dir, network, lambda paymasters: paymasters.stake(version, wei, unstake_seconds)), as_json)


@paymaster_app.command()
def withdraw(
    network: _Network,
    amount: _Amount,
    to: Annotated[str, typer.Option("--to", help="The address that gets the coins.")],
    entry_point: _Version = "0.8",
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take coins out of the deposit."""
    wei, version = _wei(amount), _version(entry_point)
    if not is_address(to):
        raise InvalidRequest("--to: an address is 0x and 40 hex digits")
    _tell(_run(config, data_dir, network, lambda paymasters: paymasters.withdraw(version, wei, to)), as_json)


@paymaster_app.command()
def show(
    network: _Network,
    entry_point: _Version = "0.8",
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show deposit, stake, owner and signer of a paymaster."""
    found = _run(config, data_dir, network, lambda paymasters: paymasters.standing(_version(entry_point)))
    if as_json:
        print_json(found)
        return
    for name in found.__struct_fields__:
        typer.echo(f"{name.replace('_', ' ')}: {getattr(found, name)}")


def _run(config: Any, data_dir: Any, network: str, work: "Callable[[Paymasters], Coroutine[Any, Any, T]]") -> T:
    # Loaded here: the other commands should not wait for the libraries that sign.
    from capstan.cli.paymasters import open_paymasters

    settings = load(config, data_dir).current
    quiet_logs(settings)

    async def run() -> T:
        async with open_paymasters(settings, network) as paymasters:
            return await work(paymasters)

    return asyncio.run(run())


def _tell(transaction: str, as_json: bool) -> None:
    if as_json:
        print_json({"transaction": transaction})
    else:
        typer.echo(f"done in transaction {transaction}")


def _wei(amount: str) -> int:
    try:
        return parse_units(amount, ETHER_DECIMALS)
    except ValueError as error:
        raise InvalidRequest(f"amount: {error}") from None


def _version(text: str) -> "Version":
    if text not in ("0.6", "0.7", "0.8"):
        raise InvalidRequest("--entry-point: our paymasters are for 0.6, 0.7 and 0.8")
    return cast("Version", text)
