"""Puts the commands together and turns known failures into one line and an exit code.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 wrong settings, 4 something needed is away (database, port).
"""

import sys

import typer

from capstan import __version__
from capstan.cli import dev, doctor, gas, keys, migrate, networks, people, serve, webhooks
from capstan.cli.common import ExitCode, complain
from capstan.core.errors import ApiError
from capstan.devnet.errors import DevnetError
from capstan.server.sockets import PortInUse
from capstan.settings import SettingsError
from capstan.storage.errors import SchemaMismatch, StorageError

app = typer.Typer(
    name="capstan",
    help="A self-hosted blockchain infrastructure API.\n\n"
    "Start with: capstan dev. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 wrong settings, "
    "4 something needed is away.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(name="serve")(serve.serve)
app.command(name="dev")(dev.dev)
app.command(name="migrate")(migrate.migrate)
app.command(name="doctor")(doctor.doctor)
app.add_typer(keys.app, name="keys")
app.add_typer(people.app, name="accounts")
app.add_typer(networks.app, name="networks")
app.add_typer(gas.app, name="gas")
app.add_typer(webhooks.app, name="webhooks")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"capstan {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options that come before the command."""


def main() -> None:
    """The entry point of the `capstan` script."""
    try:
        app()
    except SettingsError as error:
        complain(str(error))
        sys.exit(ExitCode.SETTINGS)
    except ApiError as error:
        complain(error.message)
        sys.exit(ExitCode.FAILED)
    except (PortInUse, StorageError, DevnetError) as error:
        complain(str(error))
        sys.exit(ExitCode.SETTINGS if isinstance(error, SchemaMismatch) else ExitCode.AWAY)
