"""Which networks a key may know of."""

import pytest

from capstan.access.models import ALL_SCOPES, NO_OVERRIDES, Caller, Mode
from capstan.access.reach import NetworkReach
from capstan.catalogue.networks import Networks, builtin_networks
from capstan.core.errors import Forbidden, NotFound

reach = NetworkReach(lambda: Networks(builtin_networks()))


def caller(mode: Mode) -> Caller:
    return Caller("acc_1", "key_1", mode, "free", NO_OVERRIDES, ALL_SCOPES)


def test_a_live_key_knows_all_networks_and_a_test_key_test_networks() -> None:
    everything = reach.names(caller("live"), None, None)
    assert set(everything) == {network.name for network in builtin_networks()}
    tests = reach.names(caller("test"), None, None)
    assert set(tests) == {network.name for network in builtin_networks() if network.kind == "testnet"}


def test_networks_are_picked_by_chain_by_name_or_by_both() -> None:
    assert set(reach.names(caller("live"), "base", None)) == {"base/mainnet", "base/sepolia"}
    assert reach.names(caller("test"), "base", None) == ("base/sepolia",)
    assert "base/sepolia" in reach.names(caller("test"), None, "sepolia")
    assert "base/mainnet" not in reach.names(caller("live"), None, "sepolia")
    assert reach.names(caller("test"), None, "mainnet") == ()
    assert reach.names(caller("live"), "base", "mainnet") == ("base/mainnet",)


@pytest.mark.parametrize(("chain", "network"), [("nowhere", None), (None, "nowhere"), ("base", "nowhere")])
def test_what_nobody_knows_is_named(chain: str | None, network: str | None) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        reach.names(caller("live"), chain, network)


def test_a_test_key_is_told_when_it_asks_for_a_main_network() -> None:
    with pytest.raises(Forbidden, match="base/mainnet"):
        reach.names(caller("test"), "base", "mainnet")
