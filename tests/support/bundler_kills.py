"""Kills a bundling service at random instants while operations come in, and looks at what is left of its promises.

Used by the test of the suite with a few kills, and by `bench/bundler_kills.py` with as many as one likes.
"""

import contextlib
import random
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from capstan.core.hexes import to_data
from capstan.userops.events import OPERATION_HANDLED_TOPIC
from capstan.userops.models import UserOperation
from tests.support.bundler import Accounts, BundlerClient, BundlerError, bundler_settings, network_settings
from tests.support.devnet import EvmDevnet, wait_until
from tests.support.gateway import NETWORK
from tests.support.service import Service, run_json, variables

_SENDERS = 4
_SETTLE_SECONDS = 120.0


class Killing:
    """A service that is killed again and again on one data directory."""

    def __init__(self, directory: Path, devnet: EvmDevnet, *, seed: int, signers: int = 2) -> None:
        self._directory = directory
        self._data = directory / "data"
        self._devnet = devnet
        self._random = random.Random(seed)
        self._accounts = Accounts(devnet, "0.7")
        self._key = run_json("keys", "create", "--plan", "enterprise", "--data-dir", str(self._data))["key"]
        networks = {NETWORK: {"upstreams": [devnet.url], **network_settings(devnet, unsafe=True)}}
        settings = {**bundler_settings(devnet, signers=signers), "log.access": False, "networks": networks}
        self._environment = variables(settings)
        self.signers = [account.address for account in devnet.deployment.bundler_executors[:signers]]
        self.first_block = devnet.block_number()
        self.first_nonces = [self._nonce(signer) for signer in self.signers]
        # Operations whose hash was told to the one who sent them.
        self.accepted: dict[str, UserOperation] = {}

    def kill_once(self) -> None:
        """Start the service, send operations from several threads, and kill it at a random instant."""
        service = self._start()
        stop = threading.Event()
        threads = [threading.Thread(target=self._send, args=(service, stop)) for _ in range(_SENDERS)]
        for thread in threads:
            thread.start()
        # From before the first operation is accepted to some blocks after it.
        stop.wait(self._random.uniform(0.05, 2.5))
        service.kill()
        stop.set()
        for thread in threads:
            thread.join(30)

    def settle(self) -> None:
        """Start it a last time and wait until every accepted operation is included; then it must all be so."""
        service = self._start()
        try:
            bundler = self._client(service)
            deadline = time.monotonic() + _SETTLE_SECONDS
            for operation_hash in self.accepted:
                bundler.wait_for(operation_hash, seconds=max(1.0, deadline - time.monotonic()))
            wait_until(lambda: not self._rows("SELECT nonce FROM bundles WHERE state = 'open'"), 30, "nonces to close")
        finally:
            service.kill()

    def inclusions(self) -> dict[str, int]:
        """How often each operation of the entry point was included on the chain since the beginning."""
        question = {
            "address": self._accounts.entry_point,
            "topics": [to_data(OPERATION_HANDLED_TOPIC)],
            "fromBlock": hex(self.first_block),
            "toBlock": "latest",
        }
        found: dict[str, int] = {}
        for log in self._devnet.call("eth_getLogs", question):
            found[log["topics"][1]] = found.get(log["topics"][1], 0) + 1
        return found

    def reverted(self) -> list[str]:
        """Transactions of ours that failed on the chain: each would have cost a signer gas for nothing."""
        rows = self._rows("SELECT hash FROM bundle_transactions")
        hashes = ["0x" + row[0].hex() for row in rows]
        receipts = [self._devnet.call("eth_getTransactionReceipt", each) for each in hashes]
        return [each["transactionHash"] for each in receipts if each is not None and each["status"] != "0x1"]

    def nonces(self) -> list[tuple[int, int, list[int]]]:
        """For each signer its first nonce, its next one, and those that the database says were mined."""
        found = []
        for first, signer in zip(self.first_nonces, self.signers, strict=True):
            rows = self._rows(
                "SELECT nonce FROM bundles WHERE signer = ? AND state = 'mined' ORDER BY nonce",
                bytes.fromhex(signer[2:]),
            )
            found.append((first, self._nonce(signer), [row[0] for row in rows]))
        return found

    def _start(self) -> Service:
        return Service(["--data-dir", str(self._data)], self._environment, self._directory)

    def _client(self, service: Service) -> BundlerClient:
        return BundlerClient(f"{service.base_url}/bundler/{NETWORK}", self._key)

    def _send(self, service: Service, stop: threading.Event) -> None:
        bundler = self._client(service)
        while not stop.is_set():
            operation, _ = self._accounts.new()
            try:
                told = self._accounts.send(bundler, operation)
            except (httpx.HTTPError, AssertionError, BundlerError):
                # Killed in the midst of it: nothing was promised.
                continue
            self.accepted[told] = operation

    def _nonce(self, address: str) -> int:
        return int(self._devnet.call("eth_getTransactionCount", address, "latest"), 16)

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self._data / "capstan.db", timeout=10)) as connection:
            return connection.execute(statement, values).fetchall()
