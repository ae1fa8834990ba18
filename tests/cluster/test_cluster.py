"""A subset of everything on a cluster: `capstan serve --workers 2` on PostgreSQL and a Redis Cluster of three nodes.

Two processes answer requests, a third follows the chain, delivers and bundles.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import httpx
import pytest
from eth_account import Account

from capstan.devnet.chain import forward, settings_text
from capstan.settings import load_settings
from tests.support.bundler import Accounts
from tests.support.deployment import Deployment, deployed, end, is_running, ready_processes, wait_ready
from tests.support.devnet import EvmDevnet, wait_until
from tests.support.gateway import NETWORK
from tests.support.service import Service
from tests.support.webhooks import Hooks, Receiver, mint

_LIMIT = 100
_SECONDS = 3.0
_CALLERS = 16


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("cluster"), evm_devnet, **{"webhooks.lookup_seconds": 60}) as made:
        yield made


@pytest.fixture(scope="module")
def service(deployment: Deployment) -> Iterator[Service]:
    started = deployment.start("--workers", "2")
    try:
        wait_ready(started, 3)
        yield started
    finally:
        end(started)


async def _offer(url: str, key: str, seconds: float) -> tuple[int, list[tuple[float, float]]]:
    """Ask without pause on many connections: how many were asked, and from when to when each was that passed."""
    asked, passed = 0, []
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []})
    ends = time.monotonic() + seconds

    async def caller() -> None:
        nonlocal asked
        async with aiohttp.ClientSession(headers={"X-API-Key": key, "Content-Type": "application/json"}) as session:
            while time.monotonic() < ends:
                began = time.monotonic()
                async with session.post(url, data=body) as answer:
                    await answer.read()
                    assert answer.status in (200, 429), answer.status
                asked += 1
                if answer.status == 200:
                    passed.append((began, time.monotonic()))

    await asyncio.gather(*(caller() for _ in range(_CALLERS)))
    return asked, passed


async def test_two_processes_share_one_limit_exactly(deployment: Deployment, service: Service) -> None:
    key = deployment.new_key("--plan", "growth")
    asked, passed = await _offer(f"{service.base_url}/rpc/{NETWORK}", key, _SECONDS)
    # What began and ended within a second was decided within it.
    for start, _ in passed:
        inside = sum(start <= began and ended < start + 1.0 for began, ended in passed)
        assert inside <= _LIMIT
    # A machine that is too busy to offer twice the limit cannot say how much of it is used.
    if asked >= 2 * _LIMIT * _SECONDS:
        assert len(passed) >= 0.97 * _LIMIT * _SECONDS


def test_events_are_matched_and_delivered_by_another_process(
    deployment: Deployment, service: Service, evm_devnet: EvmDevnet
) -> None:
    receiver, holder = Receiver(), str(Account.create().address)
    token = evm_devnet.deployment.tokens[0].address
    hooks = Hooks(deployment.gateway(service), evm_devnet, deployment.directory)
    try:
        hooks.created(receiver.url("/cluster"), event_type="TOKEN_TRANSFER", config={"receivers": [holder]})
        mint(evm_devnet, evm_devnet.deployment.accounts[11], token, holder, 5)
        wait_until(lambda: bool(receiver.at("/cluster")), 60, "the event")
        assert receiver.at("/cluster")[0].json["data"]["to"].lower() == holder.lower()
    finally:
        receiver.close()


def test_transfers_are_indexed_by_another_process(
    deployment: Deployment, service: Service, evm_devnet: EvmDevnet
) -> None:
    holder, token = str(Account.create().address), evm_devnet.deployment.tokens[0].address
    mint(evm_devnet, evm_devnet.deployment.accounts[11], token, holder, 7)
    url = f"{service.base_url}/tokens/ethereum/transfers/{holder}?network=devnet"

    def indexed() -> bool:
        answer = httpx.get(url, headers={"X-API-Key": deployment.key}, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text
        return len(answer.json()["transfers"]) == 1

    wait_until(indexed, 60, "the transfer")


def test_an_operation_taken_by_one_process_is_bundled_by_another(
    deployment: Deployment, service: Service, evm_devnet: EvmDevnet
) -> None:
    bundler, accounts = deployment.bundler(service), Accounts(evm_devnet, "0.7")
    operation, _ = accounts.new()
    bundler.wait_for(accounts.send(bundler, operation))


def test_a_reload_reaches_every_process(deployment: Deployment, service: Service) -> None:
    def reloads() -> int:
        return sum(line.get("event") == "reloaded" for line in service.log)

    before = reloads()
    deployment.configure(max_log_blocks=77)
    service.process.send_signal(signal.SIGHUP)
    wait_until(lambda: reloads() == before + 3, 60, "three reloads")


def test_a_process_that_dies_is_replaced_while_the_other_answers(deployment: Deployment, service: Service) -> None:
    dead = ready_processes(service)["api-1"][-1]
    os.kill(dead, signal.SIGKILL)
    wait_until(lambda: not is_running(dead), 30, "the end of the process")
    assert httpx.get(f"{service.origin}/healthz", timeout=30, trust_env=False).status_code == 200
    wait_until(lambda: ready_processes(service)["api-1"][-1] != dead, 60, "another process")


def test_a_process_without_the_api_serves_its_health_alone(deployment: Deployment, service: Service) -> None:
    origins = {line["base_url"].removesuffix("/v1") for line in service.log if line.get("event") == "started"}
    (background,) = origins - {service.origin}
    assert httpx.get(f"{background}/readyz", timeout=30, trust_env=False).json()["status"] == "ready"
    headers = {"X-API-Key": deployment.key}
    for path, method in (("/v1/networks", "GET"), (f"/v1/rpc/{NETWORK}", "POST")):
        answer = httpx.request(method, background + path, headers=headers, content=b"{}", timeout=30, trust_env=False)
        assert answer.status_code == 404, answer.text


def test_the_processes_end_with_their_supervisor(deployment: Deployment, service: Service) -> None:
    # The last test of this file: nothing is left afterwards.
    pids = [pids[-1] for pids in ready_processes(service).values()]
    service.kill()
    wait_until(lambda: not any(map(is_running, pids)), 60, "the end of the processes")


async def test_the_development_chain_alone_tells_services_how_to_use_it(tmp_path: Path, evm_devnet: EvmDevnet) -> None:
    async with await forward("127.0.0.1", 0, evm_devnet.node.port) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = tmp_path / "capstan.toml"
        config.write_text(settings_text(evm_devnet.deployment, url))
        network = load_settings(config, {}).networks[NETWORK]
        assert network.entry_points == evm_devnet.deployment.entry_points
        call = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
        async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
            assert (await client.post(network.upstreams[0].url, json=call)).json()["result"] == hex(31337)
