"""Which upstream comes next, by the rules alone."""

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.chain.budget import HedgeBudget, RateBudget
from capstan.chain.latency import Latencies
from capstan.chain.selection import MethodRules, Needs, Situation, Standing, budget_wait, choose, explain, standing

NOW = 100.0


class Node(msgspec.Struct, eq=False):
    """A candidate with every property set by hand."""

    name: str = "node"
    tier: int = 0
    weight: int = 1
    archive: bool = True
    head: int | None = None
    in_rotation: bool = True
    due: bool = False
    quiet: bool = False
    wait: float = 0.0
    seconds: float | None = None
    denied: tuple[str, ...] = ()

    def allows(self, method: str) -> bool:
        return method not in self.denied

    def silent(self, now: float) -> bool:
        return self.quiet

    def budget_wait(self, now: float) -> float:
        return self.wait

    def cost(self, method: str, now: float) -> float | None:
        return self.seconds


def order(*nodes: Node, seed: int = 0, best_head: int | None = None, **needs: Any) -> list[str]:
    """All that would be asked, one after the other."""
    random, tried = Random(seed), list[Node]()
    situation = Situation(NOW, best_head, 3)
    asked = Needs(**{"method": "eth_call", **needs})
    while (node := choose(nodes, asked, situation, random, tried=tried)) is not None:
        tried.append(node)
    return [node.name for node in tried]


def shares(*nodes: Node, calls: int = 4_000) -> dict[str, float]:
    random, counts = Random(1), dict.fromkeys((node.name for node in nodes), 0)
    for _ in range(calls):
        chosen = choose(nodes, Needs("eth_call"), Situation(NOW), random)
        assert chosen is not None
        counts[chosen.name] += 1
    return {name: count / calls for name, count in counts.items()}


def test_lower_tiers_come_first_whatever_their_cost() -> None:
    nodes = (Node("two", tier=2, seconds=0.001), Node("one", tier=1), Node("zero", tier=0, seconds=5.0))
    assert order(*nodes) == ["zero", "one", "two"]


def test_comparable_upstreams_share_by_weight() -> None:
    found = shares(Node("a", weight=3, seconds=0.010), Node("b", weight=1, seconds=0.020))
    assert found["a"] == pytest.approx(0.75, abs=0.03)


def test_an_upstream_that_is_far_slower_is_not_chosen() -> None:
    assert shares(Node("fast", seconds=0.010), Node("slow", weight=100, seconds=0.030)) == {"fast": 1.0, "slow": 0.0}


def test_an_upstream_of_which_nothing_is_known_is_given_a_chance() -> None:
    assert shares(Node("known", seconds=0.001), Node("new"))["new"] == pytest.approx(0.5, abs=0.03)


def test_the_order_of_standings() -> None:
    nodes = (
        Node("open", in_rotation=False),
        Node("short", head=9),
        Node("lagging", head=10),
        Node("silent", head=20, quiet=True),
        Node("ready", head=20),
        Node("due", head=20, in_rotation=False, due=True),
    )
    assert order(*nodes, block=10, best_head=20) == ["due", "ready", "silent", "lagging", "short", "open"]


def test_a_healthy_upstream_of_a_higher_tier_comes_before_a_lagging_one() -> None:
    assert order(Node("lagging", head=5), Node("spare", tier=1, head=20), best_head=20) == ["spare", "lagging"]


def test_a_few_blocks_behind_is_not_lagging() -> None:
    assert standing(Node(head=17), Needs("m"), Situation(NOW, 20, 3)) is Standing.READY
    assert standing(Node(head=16), Needs("m"), Situation(NOW, 20, 3)) is Standing.LAGGING


def test_an_unknown_head_is_taken_for_sufficient() -> None:
    assert order(Node("behind", head=9), Node("unknown"), block=10) == ["unknown", "behind"]


def test_old_state_is_asked_only_of_those_that_have_it_if_there_are_any() -> None:
    assert order(Node("pruned", archive=False), Node("archive"), archive=True) == ["archive"]
    assert order(Node("pruned", archive=False), archive=True) == ["pruned"]
    # Nor when the one that has it cannot be asked for its budget: a pruned node may answer, and wrongly.
    assert order(Node("pruned", archive=False), Node("archive", wait=0.5), archive=True) == []


def test_upstreams_that_do_not_take_the_method_or_are_out_of_budget_are_never_asked() -> None:
    spent = Node("spent", wait=0.25)
    assert order(Node("denied", denied=("eth_call",)), spent) == []
    assert budget_wait([spent, Node(wait=0.5), Node(wait=0.1, denied=("m",))], Needs("m"), NOW) == 0.25
    assert budget_wait([Node()], Needs("m"), NOW) is None


def test_an_upstream_is_not_tried_out_with_calls_that_must_not_fail_or_need_its_head() -> None:
    due = Node("due", head=5, in_rotation=False, due=True)
    assert order(due, Node("ready"), may_probe=False)[0] == "ready"
    assert order(due, Node("ready"), block=6)[0] == "ready"
    assert order(due, Node("ready"), best_head=50)[0] == "ready"
    assert order(due, Node("ready"))[0] == "due"


@given(
    st.lists(
        st.builds(
            Node,
            name=st.uuids().map(str),
            tier=st.integers(0, 3),
            weight=st.integers(1, 5),
            archive=st.booleans(),
            head=st.none() | st.integers(0, 30),
            in_rotation=st.booleans(),
            due=st.booleans(),
            quiet=st.booleans(),
            wait=st.sampled_from([0.0, 0.0, 0.3]),
            seconds=st.none() | st.floats(0, 10),
            denied=st.sampled_from([(), ("eth_call",)]),
        ),
        max_size=6,
    ),
    st.integers(),
    st.none() | st.integers(0, 30),
    st.booleans(),
)
def test_everyone_fit_is_asked_once_in_order_of_standing_and_tier(
    nodes: list[Node], seed: int, block: int | None, archive: bool
) -> None:
    needs, situation = Needs("eth_call", block, archive), Situation(NOW, 30, 3)
    asked = order(*nodes, seed=seed, best_head=30, block=block, archive=archive)
    places = {node.name: (standing(node, needs, situation), node.tier) for node in nodes}
    assert [places[name] for name in asked] == sorted(places[name] for name in asked)
    wanted = [node for node in nodes if not archive or node.archive or not any(other.archive for other in nodes)]
    assert sorted(asked) == sorted(node.name for node in wanted if places[node.name][0] < Standing.SPENT)
    assert asked == order(*nodes, seed=seed, best_head=30, block=block, archive=archive)
    assert len(explain(nodes, needs, situation)) == len(nodes)


def test_an_explanation_says_why() -> None:
    rows = explain(
        [Node("late", head=5), Node("good", head=20, seconds=0.0125), Node("pruned", archive=False)],
        Needs("eth_call", archive=True),
        Situation(NOW, 20, 3),
    )
    assert [(row.upstream, row.standing) for row in rows] == [
        ("good", "ready"),
        ("late", "lagging"),
        ("pruned", "unfit"),
    ]
    assert (rows[0].cost_milliseconds, rows[1].lag) == (12.5, 15)


@pytest.mark.parametrize(
    ("allow", "deny", "method", "expected"),
    [
        ((), (), "eth_call", True),
        (("eth_*",), (), "eth_call", True),
        (("eth_*",), (), "debug_traceCall", False),
        (("eth_call",), (), "eth_callMany", False),
        ((), ("debug_*", "eth_getLogs"), "debug_traceCall", False),
        ((), ("debug_*", "eth_getLogs"), "eth_getLogs", False),
        ((), ("debug_*", "eth_getLogs"), "eth_call", True),
        (("eth_*",), ("eth_getLogs",), "eth_getLogs", False),
        (("*",), (), "anything", True),
    ],
)
def test_method_rules(allow: tuple[str, ...], deny: tuple[str, ...], method: str, expected: bool) -> None:
    assert MethodRules(allow, deny)(method) is expected


# --- budgets


@given(st.integers(1, 20), st.lists(st.floats(0, 0.5), max_size=200))
def test_no_second_holds_more_calls_than_the_budget(limit: int, gaps: list[float]) -> None:
    budget, now, made = RateBudget(limit), 0.0, list[float]()
    for gap in gaps:
        now += gap
        if budget.wait_seconds(now) == 0.0:
            budget.spend(now)
            made.append(now)
    for later in range(limit, len(made)):
        assert made[later] - made[later - limit] >= 1.0 - 1e-9


def test_a_spent_budget_says_how_long_to_wait() -> None:
    budget = RateBudget(2)
    for moment in (10.0, 10.4):
        assert budget.wait_seconds(moment) == 0.0
        budget.spend(moment)
    assert budget.wait_seconds(10.5) == pytest.approx(0.5)
    assert budget.wait_seconds(11.0) == 0.0
    assert RateBudget(0).wait_seconds(0) == 0.0


def test_doubled_calls_stay_a_share_of_all() -> None:
    budget = HedgeBudget(share=0.1, most=5.0)
    doubled = 0
    for _ in range(1_000):
        budget.earn()
        doubled += budget.spend()
    assert 100 <= doubled <= 105


# --- latencies


def test_quantiles_are_by_method_and_of_recent_answers() -> None:
    latencies = Latencies()
    for step in range(40):
        latencies.note("slow", 1.0 + step, 50.0)
        latencies.note("fast", 0.001, 50.0)
    assert latencies.median("fast", 50.0) == 0.001
    assert latencies.median("slow", 50.0) == pytest.approx(25, abs=4)
    assert latencies.slow("slow") == pytest.approx(37, abs=5)
    assert latencies.median("unheard of", 50.0) is None
    assert sum(latencies.histogram) == 80


def test_a_median_that_nothing_confirms_is_forgotten() -> None:
    latencies = Latencies()
    for _ in range(5):
        latencies.note("m", 1.0, 50.0)
    assert latencies.median("m", 55.0) == 1.0
    assert latencies.median("m", 61.0) is None
    assert latencies.median("m", 61.0, keep_stale=True) == 1.0


def test_the_number_of_methods_remembered_is_bounded() -> None:
    latencies = Latencies()
    for number in range(10_000):
        for _ in range(3):
            latencies.note(f"method_{number}", 0.5, 1.0)
    assert len(latencies._methods) <= 64
