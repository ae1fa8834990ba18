"""A geth of the tests' own: one chain in memory, where every transaction is in a block at once.

Used to compare the node's tracer with our EVM. `make geth` builds the program; without it the tests that need it are
skipped, with the reason.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from typing import Any

from eth_account import Account

from capstan.core.hexes import to_checksum_address
from capstan.devnet.models import DevAccount
from tests.support.devnet import wait_until
from tools.geth import BINARY

CHAIN_ID = 1337
# The account that geth gives all its ether to in this mode. Everyone knows its key.
RICH = DevAccount(
    address="0x71562b71999873DB5b286dF957af199Ec94617F7",
    private_key="0xb71c71a67e1177ad4e901695e1b4b9ee17ae16c6668d313eac2f96dbcda3f291",
)
_SECONDS = 60.0


class Geth:
    """A running geth."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._nonce: int | None = None

    def call(self, method: str, *params: object) -> Any:
        """The result of one JSON-RPC call."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})  # noqa: S310  # loopback
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
            reply = json.load(answer)
        if "error" in reply:
            raise AssertionError(f"{method}: {reply['error']}")
        return reply["result"]

    def send(
        self, account: DevAccount, to: str | None, *, data: bytes = b"", value: int = 0, gas: int = 15_000_000
    ) -> dict[str, Any]:
        """Signs and sends a transaction of the rich account, and returns its receipt."""
        if self._nonce is None:
            self._nonce = int(self.call("eth_getTransactionCount", account.address, "latest"), 16)
        transaction: dict[str, Any] = {
            "type": 2,
            "chainId": CHAIN_ID,
            "nonce": self._nonce,
            "value": value,
            "data": data,
            "gas": gas,
            "maxFeePerGas": 20 * 10**9,
            "maxPriorityFeePerGas": 10**9,
        }
        if to is not None:
            transaction["to"] = to_checksum_address(to)
        signed = Account.sign_transaction(transaction, account.private_key)
        sent = self.call("eth_sendRawTransaction", "0x" + signed.raw_transaction.hex())
        self._nonce += 1
        wait_until(lambda: self._receipt(sent) is not None, _SECONDS, "a receipt")
        receipt = self._receipt(sent)
        assert receipt is not None
        return receipt

    def _receipt(self, transaction: str) -> dict[str, Any] | None:
        # geth answers with an error while it has not indexed the block yet.
        with contextlib.suppress(AssertionError):
            receipt: dict[str, Any] | None = self.call("eth_getTransactionReceipt", transaction)
            return receipt
        return None


@contextlib.contextmanager
def running_geth() -> Iterator[Geth]:
    """A geth for as long as the block lasts."""
    with tempfile.TemporaryDirectory() as directory, socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        reserved.close()
        command = [str(BINARY), "--dev", "--dev.gaslimit", "60000000", "--datadir", directory, "--ipcdisable"]
        command += ["--http", "--http.port", str(port), "--http.api", "eth,debug", "--nodiscover", "--maxpeers", "0"]
        process = subprocess.Popen([*command, "--authrpc.port", "0", "--verbosity", "1"])
        geth = Geth(f"http://127.0.0.1:{port}")

        def answers() -> bool:
            assert process.poll() is None, "geth ended at once"
            with contextlib.suppress(OSError):
                return int(geth.call("eth_chainId"), 16) == CHAIN_ID
            return False

        try:
            wait_until(answers, _SECONDS, "geth")
            yield geth
        finally:
            process.terminate()
            process.wait(_SECONDS)
