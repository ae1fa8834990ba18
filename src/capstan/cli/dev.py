"""`capstan dev`: the whole service with development chains of its own. The work is in `devrun`."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from capstan.cli.common import ExitCode, complain
from capstan.cli.devfile import DEV_FILE
from capstan.logs import configure_logs


def dev(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8080,
    data_dir: Annotated[Path, typer.Option(help="Where accounts, keys, mail and dev.json are kept.")] = Path(
        ".capstan-dev"
    ),
    block_time: Annotated[float, typer.Option(help="Seconds between blocks of the EVM chain.")] = 1.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
) -> None:
    """Run the service and its development chains until Ctrl-C. Writes DATA_DIR/dev.json when ready."""
    data_dir = data_dir.absolute()
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _only_one(data_dir):
        (data_dir / DEV_FILE).unlink(missing_ok=True)
        configure_logs(log_level, "console")
        # Loaded here: the other commands should not wait for the chain libraries.
        from capstan.cli.devrun import run_development

        try:
            uvloop.run(run_development(host, port, data_dir, block_time, log_level))
        finally:
            # The file says that the service is ready; after the end it would be a lie.
            (data_dir / DEV_FILE).unlink(missing_ok=True)


@contextmanager
def _only_one(data_dir: Path) -> Iterator[None]:
    """Refuse a second `capstan dev` on the same directory."""
    with (data_dir / "dev.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            complain(f"another capstan dev runs on {data_dir}; stop it or choose another --data-dir")
            raise typer.Exit(ExitCode.AWAY) from None
        yield
