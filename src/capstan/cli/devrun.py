"""Runs the whole service with development chains of its own, in one foreground process.

Called by `capstan dev`. Starts an EVM node and a Solana endpoint as children, deploys the sample contracts, runs the
service on an embedded database, and writes `dev.json` once everything answers. Accounts and keys stay in the data
directory between runs; the chains start afresh each time. Everything it started ends with it.
"""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import typer

from capstan.app import Application
from capstan.cli.common import access_service, complain
from capstan.cli.devfile import (
    DEV_FILE,
    DevSecrets,
    dev_document,
    load_secrets,
    network_overrides,
    write_private,
)
from capstan.devnet.deploy import deploy_all
from capstan.devnet.evm import EvmNode
from capstan.devnet.install import ensure_node_project
from capstan.devnet.models import Deployment
from capstan.devnet.solana.process import SolanaNode
from capstan.server.sockets import bind
from capstan.settings import LiveSettings

_ANONYMOUS_REQUESTS_PER_SECOND = 100_000


async def run_development(host: str, port: int, data_dir: Path, block_time: float, log_level: str) -> None:
    # Before the chains are started: a port that is taken should be said at once.
    bind(host, port).close()
    async with AsyncExitStack() as stack:
        project = await asyncio.to_thread(ensure_node_project, _say)
        _say("starting the development chains")
        evm = EvmNode(project, block_time=block_time)
        stack.push_async_callback(evm.stop)
        solana = SolanaNode()
        stack.push_async_callback(solana.stop)
        await asyncio.gather(evm.start(), solana.start())
        deployment = await deploy_all(evm.url, _say, project=project)
        secrets = load_secrets(data_dir)
        live = _settings(host, port, data_dir, log_level, secrets, deployment, evm.url, (solana.url, solana.ws_url))
        secrets = await _ensure_access(live, data_dir, secrets)
        application = await stack.enter_async_context(Application.open(live))
        document = dev_document(application.base_url, secrets, deployment, evm.url, solana.url)

        async def ready() -> None:
            write_private(data_dir / DEV_FILE, document)
            _welcome(document, data_dir)

        stop = asyncio.Event()
        watchers = [
            asyncio.create_task(_watch("EVM chain", evm, stop)),
            asyncio.create_task(_watch("Solana endpoint", solana, stop)),
        ]
        await application.run(on_started=ready, stop=stop)
        for watcher in watchers:
            watcher.cancel()
        _say("stopped")


def _settings(
    host: str,
    port: int,
    data_dir: Path,
    log_level: str,
    secrets: DevSecrets,
    deployment: Deployment,
    evm_url: str,
    solana_urls: tuple[str, str],
) -> LiveSettings:
    """The settings of development mode: your own, except for everything that could reach something real."""
    overrides: dict[str, object] = {
        "mode": "development",
        "data_dir": str(data_dir),
        "process.roles": ["api", "follower", "deliverer", "bundler"],
        "process.workers": 1,
        "storage.url": "sqlite",
        "storage.pgbouncer": False,
        "redis.url": "",
        "mail.smtp_url": "",
        "server.host": host,
        "server.port": port,
        "server.operator_token": secrets.operator_token,
        "log.level": log_level,
        "log.format": "console",
        "limits.anonymous_requests_per_second": _ANONYMOUS_REQUESTS_PER_SECOND,
        **network_overrides(deployment, evm_url, solana_urls),
    }
    if "CAPSTAN_NFTS__IPFS_GATEWAYS" not in os.environ:
        # The samples point to nothing on IPFS; who wants a gateway asked names it.
        overrides["nfts.ipfs_gateways"] = []
    return LiveSettings(None, os.environ, overrides)


async def _ensure_access(live: LiveSettings, data_dir: Path, secrets: DevSecrets) -> DevSecrets:
    """The account, keys and user of development mode, made on the first run."""
    if secrets.account_id:
        return secrets
    async with access_service(live.current) as service:
        account = await service.create_account("development", "enterprise")
        test = await service.create_key(account.id, name="development", mode="test")
        production = await service.create_key(account.id, name="development", mode="live")
        await service.create_user(account.id, email=secrets.email, password=secrets.password, role="operator")
    complete = msgspec.structs.replace(secrets, account_id=account.id, api_key=test.secret, live_key=production.secret)
    complete.save(data_dir)
    return complete


async def _watch(name: str, node: EvmNode | SolanaNode, stop: asyncio.Event) -> None:
    """Stop the service when a chain it depends on has ended."""
    code = await node.wait_closed()
    if not stop.is_set():
        complain(f"the {name} ended with code {code}; stopping")
        stop.set()


def _say(message: str) -> None:
    typer.echo(f"==> {message}")


def _welcome(document: dict[str, Any], data_dir: Path) -> None:
    url = f"{document['base_url']}/rpc/ethereum/devnet"
    call = '{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber","params":[]}'
    typer.echo(
        f"""
Capstan is ready.

  API            {document["base_url"]}
  API key        {document["api_key"]}
  API reference  {document["base_url"].removesuffix("/v1")}/docs
  Dashboard      {document["dashboard_url"]}
  Sign in        {document["dashboard"]["email"]}  {document["dashboard"]["password"]}
  Details        {data_dir / DEV_FILE}

Try it:

  curl -s {url} \\
    -H 'X-API-Key: {document["api_key"]}' \\
    -H 'Content-Type: application/json' \\
    -d '{call}'

Stop with Ctrl-C."""
    )
