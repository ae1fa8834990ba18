"""Killed at any instant, the bundler loses no accepted operation, includes none twice, and leaves no nonce open."""

from pathlib import Path

from tests.support.bundler_kills import Killing
from tests.support.devnet import EvmDevnet

# `bench/bundler_kills.py 50` does the same fifty times.
_KILLS = 2


def test_every_accepted_operation_is_included_exactly_once(tmp_path: Path, evm_devnet: EvmDevnet) -> None:
    killing = Killing(tmp_path, evm_devnet, seed=4337)
    for _ in range(_KILLS):
        killing.kill_once()
    assert killing.accepted, "nothing was accepted before the kills, so they prove nothing"
    killing.settle()
    inclusions = killing.inclusions()
    assert {each: inclusions.get(each, 0) for each in killing.accepted} == dict.fromkeys(killing.accepted, 1)
    assert killing.reverted() == []
    for first, following, mined in killing.nonces():
        assert mined == list(range(first, following))
