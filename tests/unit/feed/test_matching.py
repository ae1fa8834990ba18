"""The index of filters finds exactly what asking every filter would find."""

from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.feed.filters import LogFilter
from capstan.feed.matching import LogIndex

VALUES = st.sampled_from(["a", "b", "c", "d"])
LEVEL = st.none() | st.frozensets(VALUES, min_size=1, max_size=3)
FILTERS = st.builds(LogFilter, LEVEL, st.lists(LEVEL, max_size=4).map(tuple))
LOGS = st.tuples(VALUES, st.lists(VALUES, max_size=4).map(tuple))


@given(st.lists(FILTERS, max_size=30), st.lists(LOGS, max_size=20), st.data())
@settings(max_examples=300)
def test_the_index_agrees_with_a_naive_search_also_after_removals(
    filters: list[LogFilter], logs: list[tuple[str, tuple[str, ...]]], data: st.DataObject
) -> None:
    index: LogIndex[int] = LogIndex()
    for number, wanted in enumerate(filters):
        index.add(number, wanted)
    gone = data.draw(st.sets(st.sampled_from(range(len(filters))))) if filters else set()
    for number in gone:
        index.remove(number)
    assert len(index) == len(filters) - len(gone)
    for address, topics in logs:
        naive = [n for n, wanted in enumerate(filters) if n not in gone and wanted.matches(address, topics)]
        assert sorted(index.match(address, topics)) == naive


def test_a_filter_with_very_many_alternatives_is_exact_too() -> None:
    many = frozenset(f"{number}" for number in range(1_000))
    index: LogIndex[str] = LogIndex()
    index.add("wide", LogFilter(many, (many, many, many)))
    assert index.match("7", ("8", "9", "10")) == ["wide"]
    assert index.match("7", ("8", "9", "other")) == []
    assert index.match("other", ("8", "9", "10")) == []
    index.remove("wide")
    assert index.match("7", ("8", "9", "10")) == []
    assert index._root.is_empty


def test_nothing_is_left_of_filters_that_are_removed() -> None:
    index: LogIndex[int] = LogIndex()
    for number in range(100):
        index.add(number, LogFilter(frozenset({str(number), "x"}), (None, frozenset({str(number % 7)}))))
    for number in range(100):
        index.remove(number)
    index.remove(5)
    assert index._root.is_empty
    assert len(index) == 0


def test_the_cost_of_a_log_does_not_grow_with_the_filters_it_does_not_match() -> None:
    index: LogIndex[int] = LogIndex()
    # The most usual filters: one event of one contract, each for another account.
    for number in range(10_000):
        index.add(number, LogFilter(frozenset({"token"}), (frozenset({"transfer"}), None, frozenset({str(number)}))))
    visited = 0

    class Counting(str):
        """A value that counts how often it is compared or looked up."""

        def __hash__(self) -> int:
            nonlocal visited
            visited += 1
            return super().__hash__()

    topics = (Counting("transfer"), Counting("sender"), Counting("4711"))
    assert index.match(Counting("token"), topics) == [4711]
    assert visited <= 8
