"""The chain of headers: links, forks, finality and the changes that are told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.chain.heads.headers import (
    BrokenLink,
    ChainChange,
    Header,
    HeaderChain,
    HeaderChainError,
    MissingParent,
    OutsideWindow,
    ReorgBelowFinality,
)

DEEPEST_FORK = 32


def block(number: int, name: int, parent: int) -> Header:
    return Header(
        number=number, hash=f"0x{name:064x}", parent_hash=f"0x{parent:064x}", timestamp=1_700_000_000 + number
    )


def line(start: int, length: int, *, branch: int = 0, parent: int | None = None) -> list[Header]:
    """Linked headers from block `start` on. Names carry the branch, so that branches differ."""
    headers = []
    for number in range(start, start + length):
        name = branch * 10_000 + number
        below = parent if parent is not None and number == start else name - 1
        headers.append(block(number, name, below))
    return headers


class Forest:
    """Blocks that grow from a genesis block, each on one that is at most `DEEPEST_FORK` below the highest."""

    def __init__(self, choices: Sequence[int]) -> None:
        self.headers = [block(0, 1, 0)]
        for name, choice in enumerate(choices, start=2):
            highest = max(header.number for header in self.headers)
            able = [header for header in self.headers if header.number >= highest - DEEPEST_FORK]
            # Mostly on the newest, so that branches become long.
            parent = self.headers[-1] if choice % 3 and self.headers[-1] in able else able[choice % len(able)]
            self.headers.append(block(parent.number + 1, name, int(parent.hash, 16)))
        self.by_hash = {header.hash: header for header in self.headers}

    def path(self, tip: Header) -> list[Header]:
        """From genesis to the tip."""
        path = [tip]
        while path[-1].number > 0:
            path.append(self.by_hash[path[-1].parent_hash])
        return path[::-1]


class Replay:
    """A consumer that knows nothing but the changes."""

    def __init__(self) -> None:
        self.blocks: list[Header] = []

    def take(self, change: ChainChange) -> None:
        if change.restarted:
            self.blocks.clear()
        for header in change.reverted:
            assert self.blocks.pop() == header, "only what was applied is taken back, highest first"
        for header in change.applied:
            assert header not in self.blocks, "nothing is applied twice"
            if self.blocks:
                assert header.parent_hash == self.blocks[-1].hash
            self.blocks.append(header)


def feed(chain: HeaderChain, forest: Forest, tip: Header, given_at_once: int) -> ChainChange:
    """Feed a tip with some of its ancestors; hand over what is missing one by one, as the tracker does."""
    headers = forest.path(tip)[-given_at_once:]
    while True:
        try:
            return chain.extend(headers)
        except MissingParent as gap:
            chain.remember(forest.by_hash[gap.hash])


@settings(max_examples=200, deadline=None)
@given(
    choices=st.lists(st.integers(0, 1000), min_size=1, max_size=120),
    feeds=st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 6)), min_size=1, max_size=40),
)
def test_after_any_feeds_the_chain_is_the_branch_fed_last_and_changes_replay_to_it(
    choices: list[int], feeds: list[tuple[int, int]]
) -> None:
    forest, chain, replay = Forest(choices), HeaderChain(), Replay()
    replay.take(chain.extend([forest.headers[0]]))
    oracle = [forest.headers[0]]
    for choice, at_once in feeds:
        tip = forest.headers[choice % len(forest.headers)]
        change = feed(chain, forest, tip, at_once)
        if tip in oracle:
            assert not change
        else:
            oracle = forest.path(tip)
        replay.take(change)
        assert replay.blocks == oracle
        assert list(chain.headers) == oracle
        assert chain.latest == oracle[-1]
        assert all(chain.hash_at(header.number) == header.hash for header in oracle)
        beside = [header for header in forest.headers if header not in oracle]
        assert not any(chain.is_canonical(header.number, header.hash) for header in beside)


@settings(max_examples=100, deadline=None)
@given(
    window=st.integers(1, 12),
    choices=st.lists(st.integers(0, 1000), min_size=1, max_size=80),
    feeds=st.lists(st.integers(0, 1000), min_size=1, max_size=30),
)
def test_a_small_window_keeps_the_top_of_the_branch_and_refuses_what_leaves_it_below(
    window: int, choices: list[int], feeds: list[int]
) -> None:
    forest, chain = Forest(choices), HeaderChain(window)
    chain.extend([forest.headers[0]])
    for choice in feeds:
        tip = forest.headers[choice % len(forest.headers)]
        before = chain.headers
        try:
            change = chain.extend(forest.path(tip)[1:] or [tip])
        except HeaderChainError:
            assert chain.headers == before
            continue
        if change:
            assert list(chain.headers) == forest.path(tip)[-len(chain.headers) :]
        assert 1 <= len(chain.headers) <= window


@pytest.mark.parametrize("depth", range(1, DEEPEST_FORK + 1))
def test_a_fork_is_walked_back_to_the_common_ancestor(depth: int) -> None:
    chain = HeaderChain()
    common, old = line(1, 50), line(51, depth, parent=50)
    chain.extend([*common, *old])
    new = line(51, depth + 1, branch=1, parent=50)
    change = chain.extend(new)
    assert change == ChainChange(applied=tuple(new), reverted=tuple(reversed(old)))
    assert chain.headers == (*common, *new)


def test_a_header_that_is_known_changes_nothing() -> None:
    chain = HeaderChain()
    headers = line(1, 10)
    chain.extend(headers)
    assert not chain.extend(headers)
    assert not chain.extend(headers[3:5])
    assert chain.latest == headers[-1]


def test_a_gap_names_the_header_that_is_missing_and_changes_nothing() -> None:
    chain = HeaderChain()
    headers = line(1, 10)
    chain.extend(headers[:5])
    with pytest.raises(MissingParent) as missing:
        chain.extend(headers[8:])
    assert (missing.value.number, missing.value.hash) == (8, headers[7].hash)
    assert chain.latest == headers[4]
    # What was given before is remembered, so only the gap is needed.
    change = chain.extend(headers[5:8])
    assert change.applied == tuple(headers[5:8])
    assert chain.extend([headers[9]]).applied == tuple(headers[8:])


def test_the_first_block_can_be_replaced_although_its_parent_is_not_kept() -> None:
    chain = HeaderChain()
    [first], [other] = line(100, 1), line(100, 1, branch=1, parent=99)
    chain.extend([first])
    assert chain.extend([other]) == ChainChange(applied=(other,), reverted=(first,))


def test_a_branch_from_below_the_window_is_refused() -> None:
    chain = HeaderChain(window=4)
    chain.extend(line(1, 10))
    with pytest.raises(OutsideWindow):
        chain.extend(line(5, 8, branch=1, parent=4))
    assert chain.latest == line(1, 10)[-1]


@pytest.mark.parametrize(
    "headers",
    [
        [block(1, 1, 0), block(2, 2, 7)],
        [block(1, 1, 0), block(3, 2, 1)],
        [block(2, 2, 1), block(1, 1, 0)],
    ],
)
def test_headers_that_are_not_linked_are_refused(headers: list[Header]) -> None:
    with pytest.raises(BrokenLink):
        HeaderChain().extend(headers)


def test_a_parent_with_an_impossible_number_is_refused_and_can_be_forgotten() -> None:
    chain = HeaderChain()
    chain.extend(line(1, 5))
    invented, child = block(9, 77, 76), block(8, 78, 77)
    chain.remember(invented)
    with pytest.raises(BrokenLink):
        chain.extend([child])
    chain.forget(child)
    with pytest.raises(MissingParent):
        chain.extend([child])


def test_finality_never_decreases_and_a_reorganisation_below_it_is_refused() -> None:
    chain = HeaderChain()
    chain.extend(line(1, 20))
    chain.finalize(10)
    chain.finalize(8)
    assert chain.finalized_number == 10
    with pytest.raises(ReorgBelowFinality) as refused:
        chain.extend(line(10, 15, branch=1, parent=9))
    assert (refused.value.ancestor, refused.value.finalized) == (9, 10)
    assert chain.latest == line(1, 20)[-1]
    new = line(11, 15, branch=1, parent=10)
    assert chain.extend(new).applied == tuple(new)
    with pytest.raises(ReorgBelowFinality):
        chain.rewind(9)
    with pytest.raises(ReorgBelowFinality):
        chain.restart(line(3, 2, branch=2))


def test_a_block_above_the_head_is_not_final() -> None:
    chain = HeaderChain()
    chain.finalize(5)
    chain.extend(line(1, 4))
    chain.finalize(5)
    chain.mark_safe(5)
    assert chain.finalized_number is None
    assert chain.safe_number is None


def test_safe_follows_finality_up_and_a_reorganisation_down() -> None:
    chain = HeaderChain()
    chain.extend(line(1, 20))
    chain.mark_safe(15)
    assert chain.safe_number == 15
    chain.extend(line(13, 10, branch=1, parent=12))
    assert chain.safe_number == 12
    chain.finalize(14)
    assert chain.safe_number == 14


def test_rewinding_takes_back_the_top() -> None:
    chain = HeaderChain()
    headers = line(1, 10)
    chain.extend(headers)
    change = chain.rewind(7)
    assert change == ChainChange(reverted=tuple(reversed(headers[7:])))
    assert chain.latest == headers[6]
    with pytest.raises(OutsideWindow):
        chain.rewind(8)
    # The blocks may come back.
    assert chain.extend([headers[9]]).applied == tuple(headers[7:])


def test_a_restart_says_that_nothing_before_is_vouched_for() -> None:
    chain = HeaderChain()
    chain.extend(line(1, 10))
    chain.finalize(5)
    chain.mark_safe(8)
    far = line(1000, 3)
    change = chain.restart(far)
    assert change == ChainChange(applied=tuple(far), restarted=True)
    assert chain.headers == tuple(far)
    assert chain.hash_at(10) is None
    assert chain.finalized_number == 5
    low = line(2, 1, branch=1)
    assert chain.restart(low, forget_finality=True)
    assert chain.finalized_number is None


def test_memory_is_bounded() -> None:
    chain = HeaderChain(window=8)
    chain.extend(line(1, 8))
    for name in range(1000):
        chain.remember(block(9 + name % 3, 50_000 + name, 40_000 + name))
    known = [name for name in range(1000) if chain.get(f"0x{50_000 + name:064x}") is not None]
    assert known == list(range(984, 1000))
    chain.extend(line(9, 1000))
    assert len(chain.headers) == 8
    assert chain.get(line(1, 1)[0].hash) is None


def test_a_block_that_was_taken_back_is_known_as_such_until_it_comes_back() -> None:
    chain = HeaderChain()
    main = line(1, 5)
    chain.extend(main)
    other = line(4, 3, branch=1, parent=3)
    chain.remember(other[0])
    assert not chain.was_taken_back(other[0].hash), "it never was canonical"
    chain.extend(other)
    assert [chain.was_taken_back(header.hash) for header in main] == [False, False, False, True, True]
    chain.rewind(3)
    assert all(chain.was_taken_back(header.hash) for header in other)
    chain.extend(main[3:])
    assert not any(chain.was_taken_back(header.hash) for header in main)
