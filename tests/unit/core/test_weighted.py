"""A memory that never holds more than its weight."""

from hypothesis import given
from hypothesis import strategies as st

from capstan.core.weighted import WeightedMemory


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=60))
def test_weight_is_bounded_and_what_is_kept_is_the_latest(steps: list[tuple[int, int]]) -> None:
    memory: WeightedMemory[int, tuple[int, int]] = WeightedMemory(200)
    last: dict[int, tuple[int, int]] = {}
    weights: dict[int, int] = {}
    for number, (key, weight) in enumerate(steps):
        memory.put(key, (key, number), weight)
        last[key], weights[key] = (key, number), weight
        assert memory.weight <= 200
        assert memory.weight == sum(weights[kept] for kept in memory.keys())  # noqa: SIM118
    for key in memory.keys():  # noqa: SIM118
        assert memory.get(key) == last[key]


def test_what_was_used_lately_stays() -> None:
    memory: WeightedMemory[str, int] = WeightedMemory(160)
    for number in range(16):
        memory.put(str(number), number, 10)
    assert memory.get("0") == 0
    memory.put("new", 1, 10)
    assert memory.get("0") == 0
    assert memory.get("1") is None


def test_what_is_too_heavy_is_not_kept_and_drives_nothing_out() -> None:
    memory: WeightedMemory[str, int] = WeightedMemory(160)
    memory.put("small", 1, 10)
    memory.put("large", 2, 41)
    assert (memory.get("small"), memory.get("large")) == (1, None)
    memory.put("small", 3, 100)
    assert memory.get("small") is None, "the old value must not stand for the new one"
    assert (len(memory), memory.weight) == (0, 0)
