"""What happens to a bundle that is not simply mined: reorganisations, fees that are too low, somebody who was faster.

The chain of these tests moves only when a test moves it, so every step is certain.
"""

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account

from capstan.devnet.evm import CHAIN_ID
from capstan.userops.codec import encode_handle_ops
from tests.support.bundler import GWEI, Accounts, BundlerClient, serving_bundler
from tests.support.devnet import EvmDevnet, wait_until

_CARRIER = 11
_SECONDS = 60.0


class Lane:
    """A service with one signer on a chain that stands still."""

    def __init__(self, devnet: EvmDevnet, bundler: BundlerClient, data: Path) -> None:
        self.devnet = devnet
        self.bundler = bundler
        self.accounts = Accounts(devnet, "0.7")
        self.signer = devnet.deployment.bundler_executors[0].address
        self._data = data
        self._before = 0

    def begin(self) -> "Lane":
        """A test begins: what was signed before does not concern it, and gas is cheap."""
        self._before += len(self.transactions())
        self.mine_with_base_fee(GWEI)
        return self

    def transactions(self) -> list[dict[str, Any]]:
        """The transactions that were signed, oldest first."""
        rows = self._rows("SELECT hash, nonce, max_fee, operations FROM bundle_transactions ORDER BY created_at")[
            self._before :
        ]
        return [
            {"hash": "0x" + row[0].hex(), "nonce": row[1], "max_fee": int(row[2]), "operations": len(row[3]) // 32}
            for row in rows
        ]

    def is_in_node(self, transaction_hash: str) -> bool:
        """Whether the node has the transaction."""
        return self.devnet.call("eth_getTransactionByHash", transaction_hash) is not None

    def nonce(self) -> int:
        """The next nonce of the signer."""
        return int(self.devnet.call("eth_getTransactionCount", self.signer, "latest"), 16)

    def open(self) -> int:
        """How many nonces are open."""
        return len(self._rows("SELECT nonce FROM bundles WHERE state = 'open'"))

    def wait_for_transactions(self, count: int) -> None:
        """Wait until so many transactions were signed and the node has the last one."""
        wait_until(lambda: len(self.transactions()) >= count, _SECONDS, f"{count} transactions")
        last = self.transactions()[-1]["hash"]
        wait_until(lambda: self.is_in_node(last), _SECONDS, "the node to have the transaction")

    def mine_until(self, operation_hash: str) -> None:
        """Mine block after block until the operation is included."""

        def is_included() -> bool:
            self.devnet.mine()
            return self.bundler.status(operation_hash) == "included"

        wait_until(is_included, _SECONDS, "the operation to be included")

    def mine_with_base_fee(self, base_fee: int) -> None:
        """Mine a block in which gas costs at least this."""
        self.devnet.call("hardhat_setNextBlockBaseFeePerGas", hex(base_fee))
        self.devnet.mine()

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self._data / "capstan.db", timeout=10)) as connection:
            return connection.execute(statement).fetchall()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, quiet_devnet: EvmDevnet) -> Iterator[Lane]:
    directory = tmp_path_factory.mktemp("lanes")
    with serving_bundler(directory, quiet_devnet) as (_, bundler):
        yield Lane(quiet_devnet, bundler, directory / "data")


@pytest.fixture
def lane(service: Lane) -> Lane:
    return service.begin()


def test_a_reorganisation_returns_operations_and_they_are_included_again(lane: Lane) -> None:
    operation, _ = lane.accounts.new()
    lane.devnet.mine()
    snapshot = lane.devnet.call("evm_snapshot")
    sent = lane.accounts.send(lane.bundler, operation)
    lane.wait_for_transactions(1)
    lane.mine_until(sent)
    first = lane.bundler.ask("eth_getUserOperationReceipt", sent)["receipt"]
    nonce = lane.nonce()
    assert lane.devnet.call("evm_revert", snapshot) is True
    assert lane.nonce() == nonce - 1
    lane.devnet.mine()
    lane.devnet.mine()
    wait_until(lambda: lane.bundler.status(sent) == "submitted", _SECONDS, "the operation to be back in the pool")
    assert lane.bundler.ask("eth_getUserOperationReceipt", sent) is None
    lane.mine_until(sent)
    second = lane.bundler.ask("eth_getUserOperationReceipt", sent)["receipt"]
    assert second["blockHash"] != first["blockHash"]
    assert lane.nonce() == nonce
    assert lane.accounts.nonce(operation.sender) == 1
    # With the same nonce: either the very same transaction, or one that pays more because the first took long.
    made = lane.transactions()
    assert {each["nonce"] for each in made} == {nonce - 1}
    assert second["transactionHash"] in {each["hash"] for each in made}


def test_a_transaction_that_is_stuck_is_replaced_with_higher_fees(lane: Lane) -> None:
    # More of both than the market asks for, so that there is room for a replacement.
    operation, _ = lane.accounts.new(max_fee_per_gas=500 * GWEI, max_priority_fee_per_gas=400 * GWEI)
    nonce = lane.nonce()
    sent = lane.accounts.send(lane.bundler, operation)
    lane.wait_for_transactions(1)
    offered = lane.transactions()[0]["max_fee"]
    assert offered < 500 * GWEI

    def is_replaced() -> bool:
        lane.mine_with_base_fee(offered + GWEI)
        return len(lane.transactions()) > 1

    wait_until(is_replaced, _SECONDS, "another transaction")
    lane.mine_until(sent)
    made = lane.transactions()
    assert {each["nonce"] for each in made} == {nonce}
    fees = [each["max_fee"] for each in made]
    assert all(later * 10 >= earlier * 11 for earlier, later in itertools.pairwise(fees))
    assert lane.nonce() == nonce + 1
    wait_until(lambda: lane.open() == 0, _SECONDS, "the nonce to be closed")


def test_a_bundle_whose_operations_somebody_else_included_is_cancelled(lane: Lane) -> None:
    operation, _ = lane.accounts.new()
    nonce = lane.nonce()
    sent = lane.accounts.send(lane.bundler, operation)
    lane.wait_for_transactions(1)
    offered = lane.transactions()[0]["max_fee"]
    # Somebody else takes the operation, at a price at which our own transaction is left out.
    carrier = lane.devnet.deployment.accounts[_CARRIER]
    data = encode_handle_ops("0.7", [operation], bytes.fromhex(carrier.address[2:]))
    transaction = {
        "type": 2,
        "chainId": CHAIN_ID,
        "nonce": int(lane.devnet.call("eth_getTransactionCount", carrier.address, "latest"), 16),
        "to": lane.accounts.entry_point,
        "value": 0,
        "data": data,
        "gas": 3_000_000,
        "maxFeePerGas": 900 * GWEI,
        "maxPriorityFeePerGas": GWEI,
    }
    raw = Account.sign_transaction(transaction, carrier.private_key).raw_transaction
    taken = lane.devnet.call("eth_sendRawTransaction", "0x" + bytes(raw).hex())
    lane.mine_with_base_fee(offered + GWEI)
    lane.bundler.wait_for(sent)
    assert lane.bundler.ask("eth_getUserOperationReceipt", sent)["receipt"]["transactionHash"] == taken

    def is_cancelled() -> bool:
        # Our transaction must stay out until it is replaced.
        lane.mine_with_base_fee(offered + GWEI)
        return any(each["operations"] == 0 for each in lane.transactions())

    wait_until(is_cancelled, _SECONDS, "a transaction that does nothing")

    def is_closed() -> bool:
        lane.devnet.mine()
        return lane.open() == 0

    wait_until(is_closed, _SECONDS, "the nonce to be closed")
    assert lane.nonce() == nonce + 1
    receipts = [lane.devnet.call("eth_getTransactionReceipt", each["hash"]) for each in lane.transactions()]
    assert [each["status"] for each in receipts if each is not None] == ["0x1"]
    # And the lane goes on.
    further, _ = lane.accounts.new()
    lane.mine_until(lane.accounts.send(lane.bundler, further))
    assert lane.nonce() == nonce + 2
