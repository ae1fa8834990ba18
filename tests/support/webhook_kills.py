"""Kills a service with webhooks again and again while the chain is reorganised, and compares what a receiver was told.

Used by the test of the suite, with few kills, and by `bench/webhook_kills.py`, with many. The receiver folds what it is
told into balances; in the end they must be those of the contract, and the events those of the chain.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eth_abi.abi import encode
from eth_account import Account
from eth_utils.crypto import keccak

from tests.support.devnet import EvmDevnet, wait_until
from tests.support.webhooks import Receiver, mint, serving_webhooks

_PATH = "/fold"
_TRANSFER = "0x" + keccak(b"Transfer(address,address,uint256)").hex()
_SECONDS = 150


class Killing:
    """A token, some holders, a webhook for them, and a receiver that keeps everything."""

    def __init__(self, directory: Path, devnet: EvmDevnet, *, seed: int) -> None:
        self.kills = 0
        self._directory = directory
        self._devnet = devnet
        self._receiver = Receiver()
        self._dice = random.Random(seed)
        self._amount = 0
        self._account = devnet.deployment.accounts[3]
        self._token = devnet.deployment.tokens[0].address
        self._holders = [str(Account.create().address) for _ in range(5)]
        self._first_block = devnet.block_number() + 1

    def begin(self) -> None:
        """Create the webhook, and see that something is told. Then the service is killed."""
        with serving_webhooks(self._directory, self._devnet) as hooks:
            config = {"receivers": self._holders}
            hooks.created(self._receiver.url(_PATH), event_type="TOKEN_TRANSFER", config=config)
            self._mint()
            wait_until(lambda: bool(self._receiver.at(_PATH)), _SECONDS, "the first event")
        self.kills += 1

    def reorganise(self, depth: int) -> None:
        """A branch of so many blocks, then a longer one in its place; the service is killed somewhere in between."""
        steps: list[Callable[[], object]] = [self._mint] * depth
        steps += [self._revert, *[self._mint] * (depth + 1)]
        self._before = self._devnet.call("evm_snapshot")
        cut = self._dice.randrange(len(steps) + 1)
        with serving_webhooks(self._directory, self._devnet):
            for step in steps[:cut]:
                step()
            # It has written some of it by now, and told some of that.
            threading.Event().wait(self._dice.random())
        self.kills += 1
        for step in steps[cut:]:
            step()

    def settle(self) -> None:
        """Let the service catch up, and wait for the balances of the contract."""
        expected = {holder: self._balance(holder) for holder in self._holders}
        with serving_webhooks(self._directory, self._devnet):
            wait_until(
                lambda: all(self.balances()[holder] == expected[holder] for holder in self._holders),
                _SECONDS,
                f"the balances {expected}, and not {self.balances()}",
            )

    def events(self) -> dict[str, dict[str, Any]]:
        """What was told, by id. One id has one content."""
        found: dict[str, dict[str, Any]] = {}
        for request in self._receiver.at(_PATH):
            event = request.json
            assert found.setdefault(event["id"], event) == event, "one id with two contents"
        return found

    def deliveries(self) -> int:
        """How many requests the receiver got."""
        return len(self._receiver.at(_PATH))

    def balances(self) -> Counter[str]:
        """From events alone: each id counts once, and a removed event is taken back."""
        events = self.events()
        found: Counter[str] = Counter()
        for event in events.values():
            data = event["data"]
            sign = -1 if data.get("removed") else 1
            assert not data.get("removed") or data["reverts"] in events, "taken back, and never told"
            found[data["to"]] += sign * int(data["value"])
            found[data["from"]] -= sign * int(data["value"])
        return found

    def standing(self) -> Counter[tuple[str, int, str]]:
        """What was told and not taken back: transaction, place and receiver, and how often."""
        events = self.events()
        reverted = {event["data"]["reverts"] for event in events.values() if event["data"].get("removed")}
        return Counter(
            (event["data"]["transactionHash"], event["data"]["logIndex"], event["data"]["to"])
            for made, event in events.items()
            if not event["data"].get("removed") and made not in reverted
        )

    def on_chain(self) -> Counter[tuple[str, int, str]]:
        """The same of the chain."""
        words = {"0x" + "0" * 24 + holder[2:].lower(): holder for holder in self._holders}
        query = {"fromBlock": hex(self._first_block), "address": self._token, "topics": [_TRANSFER, None, [*words]]}
        logs = self._devnet.call("eth_getLogs", query)
        return Counter((log["transactionHash"], int(log["logIndex"], 16), words[log["topics"][2]]) for log in logs)

    def close(self) -> None:
        """Close the receiver."""
        self._receiver.close()

    def _mint(self) -> None:
        self._amount += 1
        mint(self._devnet, self._account, self._token, self._dice.choice(self._holders), self._amount)

    def _revert(self) -> None:
        assert self._devnet.call("evm_revert", self._before)

    def _balance(self, holder: str) -> int:
        data = keccak(b"balanceOf(address)")[:4] + encode(["address"], [holder])
        return int(self._devnet.call("eth_call", {"to": self._token, "data": "0x" + data.hex()}, "latest"), 16)
