"""A service that is killed again and again under load, on a chain that is reorganised: nothing lost, nothing invented.

`bench/webhook_kills.py` does the same fifty times, with every depth from 1 to 32.
"""

from pathlib import Path

from tests.support.devnet import EvmDevnet
from tests.support.webhook_kills import Killing

_DEPTHS = (1, 3, 32)


def test_folded_balances_are_those_of_the_contract(tmp_path: Path, quiet_devnet: EvmDevnet) -> None:
    killing = Killing(tmp_path, quiet_devnet, seed=8)
    try:
        killing.begin()
        for depth in _DEPTHS:
            killing.reorganise(depth)
        killing.settle()
        assert killing.standing() == killing.on_chain()
        assert len(killing.on_chain()) == 1 + sum(depth + 1 for depth in _DEPTHS)
    finally:
        killing.close()
