"""What is known of a method on a network is found out once, for the methods there are and for no others."""

from typing import Any

from capstan.chain.registry import Network
from capstan.rpc.treatments import Treatments
from tests.support.faulty_node import network_spec


class Case:
    """Treatments whose prices can change, and the look-ups that were made for them."""

    def __init__(self) -> None:
        self.factor = 1
        self.asked: list[str] = []
        topic: Any = object()
        heads: Any = object()

        def find_topic(_network: Network, method: str) -> Any:
            self.asked.append(method)
            return topic

        self.treatments = Treatments(
            lambda _, archive: self.factor * (10 if archive else 1), find_topic, lambda _: heads
        )


def network() -> Network:
    pool: Any = None
    return Network(network_spec(), pool)


def test_a_read_is_found_out_about_once() -> None:
    case, served = Case(), network()
    first = case.treatments.of(served, "eth_getBalance")
    assert first is not None
    assert (first.units, first.archive_units, first.reads_state, first.plain) == (1, 10, True, True)
    assert case.treatments.of(served, "eth_getBalance") is first
    assert case.asked == ["eth_getBalance"]


def test_logs_and_filters_are_never_in_memory_as_one_piece() -> None:
    case, served = Case(), network()
    for method in ("eth_getLogs", "eth_getFilterLogs"):
        found = case.treatments.of(served, method)
        assert found is not None
        assert not found.plain


def test_names_that_are_made_up_are_not_remembered() -> None:
    case, served = Case(), network()
    for number in range(100):
        assert case.treatments.of(served, f"eth_madeUp{number}") is None
        assert case.treatments.of(served, f"admin_{number}") is None
    assert case.treatments.of(served, "eth_sendRawTransaction") is None
    assert case.treatments._networks[served.name][1] == {}


def test_a_network_that_was_configured_anew_is_found_out_about_anew() -> None:
    case, old = Case(), network()
    before = case.treatments.of(old, "eth_call")
    case.factor = 7
    after = case.treatments.of(network(), "eth_call")
    assert before is not None
    assert after is not None
    assert (before.units, after.units) == (1, 7)
