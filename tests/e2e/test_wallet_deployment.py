"""A wallet's status follows the chain: deployed by its first operation or by anyone, taken back by a reorganisation."""

import concurrent.futures
import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account

from capstan.devnet.models import DevAccount
from capstan.userops.versions import Version
from tests.support.devnet import EvmDevnet, wait_until
from tests.support.wallets import (
    Wallets,
    block_time,
    deploy_by_factory,
    deploy_by_operation,
    random_salt,
    serving_wallets,
)

every_version = pytest.mark.parametrize("version", ["0.6", "0.7", "0.8"])
# Before 0.8 anyone may call the factory; later only the entry point may.
open_factory = pytest.mark.parametrize("version", ["0.6", "0.7"])


@pytest.fixture(scope="module")
def wallets(tmp_path_factory: pytest.TempPathFactory, quiet_devnet: EvmDevnet) -> Iterator[Wallets]:
    with serving_wallets(tmp_path_factory.mktemp("wallets"), quiet_devnet) as running:
        yield running


def new_owner() -> DevAccount:
    account = Account.create()
    return DevAccount(account.address, "0x" + bytes(account.key).hex())


def expected_after(wallet: dict[str, Any], receipt: dict[str, Any], devnet: EvmDevnet, nonce: int) -> dict[str, Any]:
    """What reading the wallet must tell after this receipt."""
    moment = datetime.fromtimestamp(block_time(devnet, receipt), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        **wallet,
        "status": "deployed",
        "factory_data": None,
        "init_code": "0x",
        "nonce": nonce,
        "deployed_at": moment,
        "deploy_tx": receipt["transactionHash"],
    }


@every_version
def test_the_first_operation_deploys_the_wallet(wallets: Wallets, version: Version) -> None:
    owner = new_owner()
    created = wallets.created(owner.address, entry_point_version=version)
    assert wallets.wallet(created["address"]) == {**created, "nonce": 0}
    receipt = deploy_by_operation(wallets.devnet, created, owner)
    wallets.devnet.mine(3)
    expected = expected_after(created, receipt, wallets.devnet, nonce=1)
    assert wallets.wallet(created["address"]) == expected
    # And again, now from what was stored.
    assert wallets.wallet(created["address"]) == expected
    again = wallets.create(owner=owner.address, entry_point_version=version)
    assert again.status_code == 200
    assert (again.json()["status"], again.json()["created_at"]) == ("deployed", created["created_at"])
    assert wallets.page().json()["wallets"][0]["status"] == "deployed"


@every_version
def test_a_second_operation_needs_no_factory(wallets: Wallets, version: Version) -> None:
    owner = new_owner()
    created = wallets.created(owner.address, entry_point_version=version)
    deploy_by_operation(wallets.devnet, created, owner)
    deployed = wallets.wallet(created["address"])
    receipt = deploy_by_operation(wallets.devnet, deployed, owner)
    assert receipt["status"] == "0x1"
    after = wallets.wallet(created["address"])
    assert after == {**deployed, "nonce": 2}


@open_factory
def test_a_wallet_that_anyone_deployed_is_noticed(wallets: Wallets, version: Version) -> None:
    created = wallets.created(entry_point_version=version)
    receipt = deploy_by_factory(wallets.devnet, created)
    wallets.devnet.mine(40)
    assert wallets.wallet(created["address"]) == expected_after(created, receipt, wallets.devnet, nonce=0)


@open_factory
def test_a_wallet_that_was_there_before_it_was_created_here_is_found(wallets: Wallets, version: Version) -> None:
    first = wallets.created(entry_point_version=version)
    receipt = deploy_by_factory(wallets.devnet, first)
    wallets.devnet.mine(70)
    other = wallets.with_key()
    answer = other.create(owner=first["owner"], entry_point_version=version)
    assert answer.status_code == 201
    assert (answer.json()["status"], answer.json()["factory_data"]) == ("deployed", None)
    found = other.wallet(first["address"])
    assert found == expected_after(answer.json(), receipt, wallets.devnet, nonce=0)


def test_a_reorganisation_takes_the_deployment_back(wallets: Wallets) -> None:
    devnet, owner = wallets.devnet, new_owner()
    created = wallets.created(owner.address)
    devnet.mine(2)
    snapshot = devnet.call("evm_snapshot")
    first = deploy_by_operation(devnet, created, owner)
    assert wallets.wallet(created["address"])["deploy_tx"] == first["transactionHash"]
    assert devnet.call("evm_revert", snapshot) is True
    # The chain is shorter than it was, and then as long and longer again.
    assert wallets.wallet(created["address"]) == {**created, "nonce": 0}
    devnet.mine(10)
    assert wallets.wallet(created["address"]) == {**created, "nonce": 0}
    assert wallets.page().json()["wallets"][0]["status"] == "counterfactual"
    second = deploy_by_operation(devnet, created, owner)
    assert wallets.wallet(created["address"]) == expected_after(created, second, devnet, nonce=1)


def test_a_wallet_deployed_again_in_another_block_tells_the_new_one(wallets: Wallets) -> None:
    """Nobody looked between the reorganisation and the second deployment."""
    devnet, owner = wallets.devnet, new_owner()
    created = wallets.created(owner.address)
    devnet.mine(1)
    snapshot = devnet.call("evm_snapshot")
    first = deploy_by_operation(devnet, created, owner)
    assert wallets.wallet(created["address"])["deploy_tx"] == first["transactionHash"]
    assert devnet.call("evm_revert", snapshot) is True
    devnet.mine(3)
    second = deploy_by_operation(devnet, created, owner)
    assert first["blockHash"] != second["blockHash"]
    assert wallets.wallet(created["address"]) == expected_after(created, second, devnet, nonce=1)


def test_the_stream_notices_what_nobody_reads(wallets: Wallets) -> None:
    """The rows follow the chain by themselves, forwards and back."""
    devnet, owner = wallets.devnet, new_owner()
    created = wallets.created(owner.address)
    anyone = wallets.created(entry_point_version="0.7")
    devnet.mine(2)
    wait_until(lambda: stream_position(wallets) >= devnet.block_number(), 20, "the stream to be at the head")
    snapshot = devnet.call("evm_snapshot")
    receipt = deploy_by_operation(devnet, created, owner)
    direct = deploy_by_factory(devnet, anyone)
    for wallet, told in ((created, receipt), (anyone, direct)):
        expected = (1, told["transactionHash"], told["blockHash"], block_time(devnet, told))
        wait_until(lambda: stored(wallets, wallet) == expected, 20, "the row to be deployed")  # noqa: B023 - at once
    assert devnet.call("evm_revert", snapshot) is True
    devnet.mine(4)
    for wallet in (created, anyone):
        wait_until(lambda: stored(wallets, wallet) == (0, None, None, None), 20, "the row to be back")  # noqa: B023
    assert wallets.wallet(created["address"]) == {**created, "nonce": 0}


def stream_position(wallets: Wallets) -> int:
    """The last block that the stream of the wallets has written."""
    rows = query(wallets, "SELECT number FROM cursors WHERE role = 'wallets'")
    return int(rows[0][0]) if rows else -1


def stored(wallets: Wallets, wallet: dict[str, Any]) -> tuple[Any, ...]:
    """What the row of a wallet says of its deployment."""
    address = bytes.fromhex(wallet["address"][2:])
    statement = "SELECT deployed, deploy_tx, deploy_hash, deployed_at FROM wallets WHERE address = ?"
    ((deployed, transaction, block_hash, moment),) = query(wallets, statement, address)
    if not deployed:
        return deployed, transaction, block_hash, moment
    return deployed, "0x" + transaction.hex(), "0x" + block_hash.hex(), moment // 1_000_000


def query(wallets: Wallets, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Rows of the service's own database."""
    with contextlib.closing(sqlite3.connect(wallets.directory / "data" / "capstan.db", timeout=10)) as connection:
        return connection.execute(statement, values).fetchall()


def test_created_wallets_survive_a_kill(tmp_path: Path, quiet_devnet: EvmDevnet) -> None:
    """Every wallet whose creation was answered is there after the process is killed in the midst of creating more."""
    owners = [Account.create().address for _ in range(30)]
    answered: dict[str, dict[str, Any]] = {}

    with serving_wallets(tmp_path, quiet_devnet) as running:
        key = running.key

        def create(owner: str) -> None:
            answer = running.create(owner=owner, salt=random_salt())
            if answer.status_code == 201:
                answered[owner] = answer.json()
            if len(answered) == 10:
                running.gateway.service.process.kill()

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            # Those that come after the kill fail; which they are does not matter.
            for done in [pool.submit(create, owner) for owner in owners]:
                done.exception()
    assert 10 <= len(answered) < 30
    with serving_wallets(tmp_path, quiet_devnet) as again:
        survivor = Wallets(again.gateway, quiet_devnet, tmp_path, key)
        for wallet in answered.values():
            repeated = survivor.create(owner=wallet["owner"], salt=wallet["salt"])
            assert (repeated.status_code, repeated.json()) == (200, wallet)
        listed = {item["address"] for page in (1, 2) for item in survivor.page(page=page).json()["wallets"]}
        assert listed >= {wallet["address"] for wallet in answered.values()}
