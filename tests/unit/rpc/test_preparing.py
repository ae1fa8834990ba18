"""A call that only its frame was read of is prepared as if all of it had been read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.chain.registry import Network
from capstan.core.clock import ManualClock
from capstan.core.errors import InvalidRequest, PayloadTooLarge
from capstan.rpc.cache.gateway import Plan, RpcCache
from capstan.rpc.preparing import Prepared, PreparedRead, Preparer, RpcLimits
from tests.support.faulty_node import network_spec
from tests.support.rpc_gateway import FixedHeads

ADDRESS = "0x" + "ab" * 20
READS = {
    "eth_chainId": ["[]"],
    "eth_getBalance": [f'["{ADDRESS}","latest"]', f'["{ADDRESS}","0x10"]', f'["{ADDRESS}"]', f'["{ADDRESS.upper()}"]'],
    "eth_call": [f'[{{"data":"0x01","to":"{ADDRESS}"}},"latest"]', f'[{{"to":"{ADDRESS}","data":"0x01"}},"latest"]'],
    "eth_getBlockByNumber": ['["0x1",false]', '["pending",true]', '["0x1"]extra', '["0x1",false'],
    "eth_gasPrice": ["[]", "[ ]", "null"],
    "eth_sendRawTransaction": ['["0x01"]'],
    "eth_madeUp": ["[]"],
}
BODIES = [
    frame % {"method": method, "params": params}
    for method, spellings in READS.items()
    for params in spellings
    for frame in (
        '{"jsonrpc":"2.0","id":7,"method":"%(method)s","params":%(params)s}',
        '{"jsonrpc": "2.0", "method": "%(method)s", "params": %(params)s, "id": 7}',
        '{"jsonrpc":"2.0","id":"x","method":"%(method)s","params":%(params)s}',
        '{"jsonrpc":"2.0","id":7,"method":"%(method)s"}',
        '{"jsonrpc":"2.0","method":"%(method)s","params":%(params)s}',
        '[{"jsonrpc":"2.0","id":7,"method":"%(method)s","params":%(params)s}]',
        '{"jsonrpc":"2.0","id":7,"method":"%(method)s","params":%(params)s,"params":[]}',
    )
]


class Case:
    """A preparer in front of a cache, in which answers can be put."""

    def __init__(self, *, with_shortcut: bool) -> None:
        self.heads = FixedHeads(100)
        self.cache = RpcCache(ManualClock())
        pool: Any = None
        self.network = Network(network_spec(), pool)
        self.preparer = Preparer(
            RpcLimits(max_body_bytes=1000),
            cost=lambda method, archive: len(method) * (10 if archive else 1),
            head=lambda _: 100,
            archive_depth=lambda: 50,
            topic=lambda network, method: self.cache.topic(network.name, "evm", method),
            ask=self.cache.ask,
            ask_known=self.cache.ask_known if with_shortcut else lambda *_: None,
            heads=lambda _: self.heads,
        )

    def prepare(self, body: str) -> Any:
        """What the body is prepared as, in words that can be compared."""
        try:
            found = self.preparer.prepare(self.network, body.encode())
        except (InvalidRequest, PayloadTooLarge) as error:
            return error.message
        if isinstance(found, Prepared):
            return found
        return found.items, found.units, found.archive, found.question, found.treatment.method

    def answer(self, body: str) -> None:
        """Keep an answer to the body, if it is one that may be kept."""
        found = self.preparer.prepare(self.network, body.encode())
        if isinstance(found, PreparedRead):
            plan = self.cache.look_up(found.treatment.topic, found.question, self.heads)
            if isinstance(plan, Plan):
                self.cache._keep(plan, json.dumps("0x1").encode(), None)  # type: ignore[arg-type] # bytes are as good


@given(st.lists(st.tuples(st.sampled_from(BODIES), st.booleans()), max_size=12))
def test_what_is_in_memory_changes_nothing_in_how_a_body_is_read(asked: list[tuple[str, bool]]) -> None:
    short, careful = Case(with_shortcut=True), Case(with_shortcut=False)
    for body, answered in asked:
        assert short.prepare(body) == careful.prepare(body)
        if answered:
            try:
                short.answer(body)
            except InvalidRequest:
                continue
            assert short.prepare(body) == careful.prepare(body)


def test_a_method_that_was_read_once_is_known_by_its_name() -> None:
    case = Case(with_shortcut=True)
    assert case.preparer.methods(case.network) == {}
    case.prepare(BODIES[0])
    case.prepare('{"jsonrpc":"2.0","id":7,"method":"eth_madeUp","params":[]}')
    assert list(case.preparer.methods(case.network)) == [b"eth_chainId"]


def test_a_body_that_is_too_large_is_not_read() -> None:
    body = b'{"jsonrpc":"2.0","id":7,"method":"eth_chainId","params":[%b]}' % (b" " * 1000)
    case = Case(with_shortcut=True)
    with pytest.raises(PayloadTooLarge):
        case.preparer.prepare(case.network, body)
