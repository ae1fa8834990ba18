"""Values by block: what is kept depends on the height alone, and is bounded."""

from __future__ import annotations

import pytest

from capstan.chain.follower.kept import KeptByHeight
from capstan.chain.follower.models import Block

WINDOW = 16


def block_at(number: int, branch: int = 0) -> Block:
    return Block(number, f"0x{branch:x}-{number}", f"0x{branch:x}-{number - 1}", 0, b"{}", None, None, None)


@pytest.fixture
def kept() -> KeptByHeight[int]:
    return KeptByHeight(WINDOW)


def put(kept: KeptByHeight[int], number: int, tip: int | None, branch: int = 0) -> None:
    kept.put(block_at(number, branch), number, tip)


def test_blocks_near_the_tip_stay_however_many_older_ones_come(kept: KeptByHeight[int]) -> None:
    for number in range(985, 1001):
        put(kept, number, 1000)
    for number in range(984):
        put(kept, number, 1000)
    assert [kept.get(f"0x0-{number}") for number in range(984, 1001)] == [None, *range(985, 1001)]
    assert len(kept) == WINDOW


def test_what_falls_behind_the_tip_is_let_go(kept: KeptByHeight[int]) -> None:
    for number in range(10_000):
        put(kept, number, number)
        assert len(kept) <= 2 * WINDOW
    assert all(kept.get(f"0x0-{number}") == number for number in range(9_985, 10_000))


def test_a_chain_that_begins_anew_does_not_suffer_from_what_was_far_above(kept: KeptByHeight[int]) -> None:
    for start in (9_000, 8_000, 7_000, 100, 0):
        for number in range(start, start + WINDOW):
            put(kept, number, number)
    assert all(kept.get(f"0x0-{number}") == number for number in range(WINDOW))
    assert len(kept) <= 2 * WINDOW


def test_branches_of_one_height_are_bounded_and_the_ones_told_last_stay(kept: KeptByHeight[int]) -> None:
    put(kept, 5, None, branch=0)
    for branch in range(1, 1_000):
        put(kept, 5, None, branch=branch)
        put(kept, 5, None, branch=0)
    assert kept.get("0x0-5") == 5
    assert kept.get("0x3e7-5") == 5
    assert len(kept) <= 32
