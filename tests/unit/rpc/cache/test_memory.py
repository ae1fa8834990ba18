"""The memory cache: its bounds, what leaves first, and what a change of the chain drops."""

import random

import pytest

from capstan.core.clock import ManualClock
from capstan.rpc.cache.memory import ENTRY_OVERHEAD, MemoryCache, MemoryLimits
from capstan.rpc.cache.models import Binding, Life

FINAL = Binding(Life.FINAL)
HEAD = Binding(Life.HEAD)


def at(number: int) -> Binding:
    return Binding(Life.BLOCK, number)


def cache(**limits: int) -> MemoryCache:
    return MemoryCache(ManualClock(), MemoryLimits(**limits))


def test_the_least_recently_used_leaves_first_when_there_are_too_many() -> None:
    tested = cache(max_entries=3)
    for key in (b"a", b"b", b"c"):
        tested.put("n", key, key, FINAL)
    assert tested.get(b"a") == b"a"
    tested.put("n", b"d", b"d", FINAL)
    assert [tested.get(key) for key in (b"a", b"b", b"c", b"d")] == [b"a", None, b"c", b"d"]


def test_the_bound_on_bytes_holds_for_all_networks_together() -> None:
    tested = cache(max_bytes=100_000)
    for number in range(1000):
        tested.put(f"network-{number % 7}", b"%d" % number, b"x" * (number % 3000), at(number))
        assert tested.statistics.bytes <= 100_000
    assert tested.get(b"999") is not None
    assert tested.statistics.evicted > 900


def test_an_answer_that_is_too_large_is_not_kept_and_evicts_nothing() -> None:
    tested = cache(max_entry_bytes=1000)
    tested.put("n", b"a", b"a", FINAL)
    assert not tested.put("n", b"b", b"x" * 1000, FINAL)
    assert tested.get(b"b") is None
    assert tested.get(b"a") == b"a"


def test_a_new_answer_replaces_the_old_one_even_when_it_is_too_large() -> None:
    tested = cache(max_entry_bytes=1000)
    tested.put("n", b"a", b"old", HEAD)
    tested.put("n", b"a", b"new", at(5))
    tested.drop_head("n")
    assert tested.get(b"a") == b"new"
    tested.put("n", b"a", b"x" * 1000, at(5))
    assert tested.get(b"a") is None
    assert tested.statistics.bytes == 0


def test_dropping_concerns_one_network_and_one_block_alone() -> None:
    tested = cache()
    tested.put("n", b"five", b"", at(5))
    tested.put("n", b"six", b"", at(6))
    tested.put("n", b"head", b"", HEAD)
    tested.put("n", b"always", b"", FINAL)
    tested.put("n", b"final five", b"", Binding(Life.FINAL, 5))
    tested.put("m", b"other five", b"", at(5))
    tested.put("m", b"other head", b"", HEAD)
    tested.drop_block("n", 5)
    tested.drop_head("n")
    left = [b"five", b"six", b"head", b"always", b"final five", b"other five", b"other head"]
    assert [key for key in left if tested.get(key) is not None] == [b"six", b"always", b"other five", b"other head"]
    tested.drop_network("n")
    assert tested.statistics.entries == 2
    tested.drop_network("n")


def test_an_entry_ends_with_its_time() -> None:
    clock = ManualClock()
    tested = MemoryCache(clock)
    tested.put("n", b"a", b"a", HEAD, 2.0)
    clock.advance(1.9)
    assert tested.get(b"a") == b"a"
    clock.advance(0.1)
    assert tested.get(b"a") is None
    assert tested.statistics.entries == 0


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_left_behind_in_the_books(seed: int) -> None:
    """After any sequence of operations, the sum of sizes and the lists of keys are those of the entries there are."""
    chance = random.Random(seed)
    tested = cache(max_bytes=40_000, max_entries=60)
    for _ in range(5000):
        network = chance.choice("ab")
        key = f"{network}{chance.randrange(80)}".encode()
        step = chance.random()
        if step < 0.7:
            binding = chance.choice([FINAL, HEAD, at(chance.randrange(9)), Binding(Life.FINAL, chance.randrange(9))])
            tested.put(network, key, b"x" * chance.randrange(1200), binding)
        elif step < 0.9:
            tested.get(key)
        elif step < 0.97:
            tested.drop_block(network, chance.randrange(9))
        else:
            tested.drop_head(network)
    entries = tested._entries
    assert tested.statistics.bytes == sum(
        len(key) + len(entry.result) + ENTRY_OVERHEAD for key, entry in entries.items()
    )
    listed: list[bytes] = []
    for groups in tested._groups.values():
        assert all(groups.blocks.values())
        for group in (groups.head, groups.lasting, *groups.blocks.values()):
            listed.extend(group)
    assert sorted(listed) == sorted(entries)


def test_a_change_costs_time_for_what_it_drops_only() -> None:
    """Counted in visits to entries, not in seconds."""
    tested = cache()
    for number in range(20_000):
        tested.put("n", b"%d" % number, b"", at(number))
    visited: list[bytes] = []

    class Watched(dict[bytes, None]):
        def __iter__(self):  # type: ignore[no-untyped-def]  # the type of a dict's iterator is not public
            visited.extend(self.keys())
            return super().__iter__()

    groups = tested._groups["n"]
    groups.blocks = {number: Watched(group) for number, group in groups.blocks.items()}
    for number in range(100, 132):
        tested.drop_block("n", number)
    assert len(visited) == 32
    assert tested.statistics.entries == 20_000 - 32
