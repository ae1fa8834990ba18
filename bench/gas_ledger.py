"""Plays at random with sponsorships on a real chain, and holds the ledger against the chain. Not a measure of speed.

A real service and a real development chain. Operations of new wallets without money are sponsored on entry points 0.6,
0.7 and 0.8; some land, some expire, the chain takes back blocks, time jumps, and the service is killed (SIGKILL) and
started again. At the end the ledger must say what the chain says: an operation is settled if and only if its event is
on the chain, what it spent is its actualGasCost at the price that was written down, rounded up to a billionth of a US
dollar; the sums are those of the sponsorships, and reserved, spent and free are the budget.

Run `python bench/gas_ledger.py [steps] [seed]`; without arguments 60 steps. Exits with 1 when anything differs.
"""

import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# Found by the line above when run as a script.
from capstan.core.hexes import to_data
from capstan.devnet.errors import DevnetError
from capstan.devnet.install import ensure_node_project
from capstan.userops.events import OPERATION_HANDLED_TOPIC
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version
from tests.support.devnet import EvmDevnet, running_devnet
from tests.support.gas import Gas, Sender, serving_gas

_STEPS, _SEED = 60, 7677
_VERSIONS: tuple[Version, ...] = ("0.6", "0.7", "0.8")
_BUDGET = Decimal(1_000)
_BILLIONTH = Decimal("0.000000001")
_SETTLE_SECONDS = 120.0
_SETTINGS = {"gas.validity_seconds": 60, "gas.release_seconds": 5}


class Play:
    """A service that is killed again and again while it sponsors, on a chain that changes its mind."""

    def __init__(self, directory: Path, devnet: EvmDevnet, seed: int) -> None:
        self._directory = directory
        self._devnet = devnet
        self._dice = random.Random(seed)
        self._stack = contextlib.ExitStack()
        self._key: str | None = None
        self._gas = self._start()
        self._key = self._gas.key
        self.policy: str = self._gas.policy({"max_total_usd": str(_BUDGET)})["id"]
        self._first_block = devnet.block_number()
        self._open: list[tuple[Sender, UserOperation]] = []
        self._snapshots: list[str] = []
        self.steps: Counter[str] = Counter()

    def close(self) -> None:
        """End the service."""
        self._stack.close()

    def step(self) -> None:
        """One random thing."""
        chosen = self._dice.choices(
            (self.sponsor, self.land, self.remember, self.take_back, self.jump, self.kill), (8, 6, 2, 2, 1, 1)
        )[0]
        self.steps[chosen.__name__] += 1
        chosen()

    def sponsor(self) -> None:
        """A new wallet asks; a budget that is used up refuses."""
        sender = Sender(self._devnet, self._dice.choice(_VERSIONS))
        operation = sender.operation(maxFeePerGas=hex(self._dice.randrange(5, 50) * 10**9))
        answer = self._gas.sponsor(self.policy, operation, entry_point=sender.entry_point)
        if answer.status_code == 403 and "max_total_usd" in answer.text:
            self.steps["refused"] += 1
            return
        assert answer.status_code == 200, answer.text
        self._open.append((sender, sender.signed(operation, answer.json())))

    def land(self) -> None:
        """One of those that were sponsored is sent to its entry point, which may refuse it."""
        if self._open:
            sender, operation = self._dice.choice(self._open)
            sender.land(operation)

    def remember(self) -> None:
        """The chain may go back to here."""
        self._snapshots.append(self._devnet.call("evm_snapshot"))

    def take_back(self) -> None:
        """The chain goes back, and on by another way."""
        if self._snapshots:
            self._devnet.call("evm_revert", self._snapshots.pop())
            self._devnet.mine(self._dice.randrange(1, 4))

    def jump(self) -> None:
        """Time passes: what waits may expire."""
        self._devnet.call("evm_increaseTime", self._dice.choice((10, 50, 200)))
        self._devnet.mine()

    def kill(self) -> None:
        """The service dies without a warning, and comes back."""
        self._gas.gateway.service.process.kill()
        self._stack.close()
        self._gas = self._start()

    def settled(self) -> bool:
        """Whether the ledger agrees with the chain, in the end."""
        self._devnet.call("evm_increaseTime", 300)
        deadline = time.monotonic() + _SETTLE_SECONDS
        while self.differences():
            if time.monotonic() > deadline:
                return False
            time.sleep(1.0)
        return True

    def differences(self) -> list[str]:
        """What the ledger says that the chain does not, and the other way round."""
        costs, found = self._costs(), []
        rows = self.rows()
        for row in rows:
            cost = costs.pop(row["user_operation_hash"], None)
            spent = Decimal(0) if cost is None else _worth(cost, row["price_usd"])
            expected = "released" if cost is None else "settled"
            if (row["state"], Decimal(row["spent_usd"])) != (expected, spent):
                found.append(f"{row['id']} is {row['state']} for {row['spent_usd']}; should be {expected} for {spent}")
        found += [f"{each} is on the chain and not in the ledger" for each in costs]
        total = self._gas.read(self.policy).json()["total"]
        reserved, spent, free = (Decimal(total[f"{name}_usd"]) for name in ("reserved", "spent", "remaining"))
        if reserved + spent + free != _BUDGET:
            found.append(f"{reserved} + {spent} + {free} is not {_BUDGET}")
        if spent != sum(Decimal(row["spent_usd"]) for row in rows) or reserved:
            found.append(f"the policy says {reserved} reserved and {spent} spent")
        return found

    def rows(self) -> list[dict[str, Any]]:
        """The ledger of the policy."""
        return list(self._pages())

    def _pages(self) -> Iterator[dict[str, Any]]:
        page = 1
        while True:
            path = f"/gas/policies/{self.policy}/sponsorships"
            found = self._gas.client.get(path, params={"page": page, "limit": 100}).json()["sponsorships"]
            yield from found
            if len(found) < 100:
                return
            page += 1

    def _costs(self) -> dict[str, int]:
        """actualGasCost of every operation that our paymasters paid for, by its hash, as the chain has it now."""
        paymasters = {address.lower() for address in self._devnet.deployment.paymasters.values()}
        question = {
            "address": [self._devnet.deployment.entry_points[version] for version in _VERSIONS],
            "topics": [to_data(OPERATION_HANDLED_TOPIC)],
            "fromBlock": hex(self._first_block),
            "toBlock": "latest",
        }
        return {
            log["topics"][1]: int(log["data"][2 + 128 : 2 + 192], 16)
            for log in self._devnet.call("eth_getLogs", question)
            if "0x" + log["topics"][3][-40:] in paymasters
        }

    def _start(self) -> Gas:
        gas = self._stack.enter_context(serving_gas(self._directory, self._devnet, _SETTINGS))
        return gas if self._key is None else Gas(gas.gateway, self._devnet, self._directory, self._key)


def _worth(wei: int, price: str) -> Decimal:
    """US dollars, rounded up to a billionth; not with the code that is tried here."""
    return (Decimal(wei) * Decimal(price) / 10**18).quantize(_BILLIONTH, rounding=ROUND_CEILING)


def main(steps: int, seed: int) -> int:
    """Play, settle, compare, print."""
    with running_devnet(ensure_node_project(print)) as devnet, tempfile.TemporaryDirectory() as directory:
        play = Play(Path(directory), devnet, seed)
        try:
            for number in range(steps):
                # A connection may break on a busy machine. What came of the step is for the chain to say.
                with contextlib.suppress(httpx.TransportError, DevnetError):
                    play.step()
                if number % 20 == 19:
                    print(f"step {number + 1}: {dict(play.steps)}", flush=True)
            agreed = play.settled()
            states = Counter(row["state"] for row in play.rows())
            print(f"{steps} steps, seed {seed}: {dict(play.steps)}")
            print(f"sponsorships {dict(states)}; {'the ledger is that of the chain' if agreed else 'DIFFERENCES:'}")
            for difference in play.differences():
                print(f"  {difference}")
            return int(not agreed or not states["settled"] or not states["released"])
        finally:
            play.close()


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    sys.exit(main(*given, *(_STEPS, _SEED)[len(given) :]))
