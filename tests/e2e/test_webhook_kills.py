"""A service that is killed again and again under load, on a chain that is reorganised: nothing lost, nothing invented.

The receiver folds what it is told into balances. In the end they must be those that the contract tells.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from eth_abi.abi import encode
from eth_account import Account
from eth_utils.crypto import keccak

from tests.support.devnet import EvmDevnet, wait_until
from tests.support.webhooks import Receiver, mint, serving_webhooks

_KILLS = 4
_PATH = "/fold"


def folded(receiver: Receiver) -> Counter[str]:
    """Balances by holder, from events alone: each id counts once, and a removed event is taken back."""
    events: dict[str, dict[str, Any]] = {}
    for request in receiver.at(_PATH):
        event = request.json
        known = events.setdefault(event["id"], event)
        assert known == event, "one id with two contents"
    balances: Counter[str] = Counter()
    for event in events.values():
        data = event["data"]
        sign = -1 if data.get("removed") else 1
        if data.get("removed"):
            assert data["reverts"] in events, "something was taken back that was never told"
        balances[data["to"]] += sign * int(data["value"])
        balances[data["from"]] -= sign * int(data["value"])
    return balances


def balance(devnet: EvmDevnet, token: str, holder: str) -> int:
    data = keccak(b"balanceOf(address)")[:4] + encode(["address"], [holder])
    return int(devnet.call("eth_call", {"to": token, "data": "0x" + data.hex()}, "latest"), 16)


def test_folded_balances_are_those_of_the_contract(tmp_path: Path, quiet_devnet: EvmDevnet) -> None:
    devnet, receiver = quiet_devnet, Receiver()
    account, token = devnet.deployment.accounts[3], devnet.deployment.tokens[0].address
    holders = [str(Account.create().address) for _ in range(5)]
    try:
        for round_number in range(_KILLS + 1):
            # Leaving the block kills the service (SIGKILL) with whatever is under way.
            with serving_webhooks(tmp_path, devnet) as hooks:
                if round_number == 0:
                    hooks.created(receiver.url(_PATH), event_type="TOKEN_TRANSFER", config={"receivers": holders})
                before = devnet.call("evm_snapshot")
                for place in range(3 + round_number):
                    mint(devnet, account, token, holders[place % 5], 1000 * round_number + place + 1)
                if round_number == 0:
                    wait_until(lambda: len(receiver.at(_PATH)) >= 3, 120, "the first events")
                # Another branch, longer than the first.
                assert devnet.call("evm_revert", before)
                for place in range(5 + round_number):
                    mint(devnet, account, token, holders[-1 - place % 5], 77 * round_number + place + 1)
                devnet.mine(2)
        expected = {holder: balance(devnet, token, holder) for holder in holders}
        with serving_webhooks(tmp_path, devnet):
            wait_until(
                lambda: all(folded(receiver)[holder] == expected[holder] for holder in holders),
                150,
                f"the balances {expected}, and not {folded(receiver)}",
            )
    finally:
        receiver.close()
