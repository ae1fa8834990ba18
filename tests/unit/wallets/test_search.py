"""The search for a deployment: exact whatever is known, bounded in calls, and silent where a node has forgotten."""

import asyncio
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from capstan.chain.calls.models import BlockRef
from capstan.chain.errors import NodeError, NodeUnable
from capstan.core.clock import ManualClock
from capstan.core.jsonrpc import ErrorObject
from capstan.userops.events import ACCOUNT_DEPLOYED_TOPIC
from capstan.wallets import search as search_module
from capstan.wallets.chain import WalletChain
from capstan.wallets.models import Deployment, Wallet
from capstan.wallets.search import DeploymentSearch

T = TypeVar("T")

ADDRESS = b"\x11" * 20
ENTRY_POINT = b"\x22" * 20
TRANSACTION = "0x" + "ab" * 32


class Chain:
    """A network whose nodes know when the code appeared, and forget the state of old blocks."""

    name = "ethereum/devnet"

    def __init__(self, head: int, deployed: int, *, state_from: int = 0, events: str = "entry point") -> None:
        self.head = head
        self.deployed = deployed
        self.state_from = state_from
        self.events = events
        self.calls: list[str] = []
        self.receipts: list[dict[str, Any]] | None = []

    @property
    def pool(self) -> "Chain":
        return self

    async def call(self, method: str, params: bytes, **_options: Any) -> Raw:
        return Raw(msgspec.json.encode(self._answer(method, msgspec.json.decode(params))))

    async def request_as(self, kind: type[T], method: str, params: list[Any]) -> T:
        return msgspec.convert(self._answer(method, params), kind)

    def _answer(self, method: str, params: list[Any]) -> Any:
        self.calls.append(method)
        if method == "eth_getCode":
            number = int(params[1], 16)
            if number < self.state_from:
                raise NodeUnable(ErrorObject(-32000, "missing trie node"), Raw(b"{}"))
            return "0x60" if number >= self.deployed else "0x"
        if method == "eth_getBlockByNumber":
            number = int(params[0], 16)
            return {"number": hex(number), "hash": block_hash(number), "timestamp": hex(1_700_000_000 + number)}
        if method == "eth_getLogs":
            return self._logs(params[0])
        if self.receipts is None:
            raise NodeError(ErrorObject(-32601, "no such method"), Raw(b"{}"))
        return self.receipts

    def _logs(self, query: dict[str, Any]) -> list[Any]:
        assert query["blockHash"] == block_hash(self.deployed)
        wanted = {"entry point": ENTRY_POINT, "wallet": ADDRESS}.get(self.events)
        if wanted is None or query["address"] != "0x" + wanted.hex():
            return []
        if self.events == "entry point":
            assert query["topics"] == ["0x" + ACCOUNT_DEPLOYED_TOPIC.hex(), None, "0x" + "00" * 12 + ADDRESS.hex()]
        return [{"transactionHash": TRANSACTION}]


def block_hash(number: int) -> str:
    return "0x" + number.to_bytes(32, "big").hex()


def wallet(absent_at: int | None) -> Wallet:
    return Wallet(
        id="wal_1",
        account_id="acc_1",
        chain="ethereum",
        network="ethereum/devnet",
        address=ADDRESS,
        owner=b"\x33" * 20,
        owner_text="",
        salt=0,
        factory=b"\x44" * 20,
        entry_point=ENTRY_POINT,
        version="0.8",
        created_at=datetime.fromtimestamp(0, UTC),
        absent_at=absent_at,
        deployed=True,
        deployment=None,
    )


class Notes:
    """What the search stored."""

    def __init__(self) -> None:
        self.found: list[Deployment] = []

    async def __call__(self, _wallet: Wallet, deployment: Deployment) -> None:
        self.found.append(deployment)


async def find(chain: Chain, absent_at: int | None, notes: Notes | None = None) -> Deployment | None:
    reader = WalletChain(cast(Any, None), cast(Any, None))
    search = DeploymentSearch(reader, ManualClock(), note=notes or Notes())
    head = BlockRef(chain.head, block_hash(chain.head), 0)
    found = await search.find(cast(Any, chain), wallet(absent_at), head)
    await search.close()
    return found


def expected(number: int, transaction: str | None = TRANSACTION) -> Deployment:
    moment = datetime.fromtimestamp(1_700_000_000 + number, UTC)
    known = None if transaction is None else bytes.fromhex(transaction[2:])
    return Deployment(number, number.to_bytes(32, "big"), moment, known)


@settings(max_examples=200)
@given(head=st.integers(0, 30_000_000), data=st.data())
def test_the_block_is_found_from_any_hint_in_few_calls(head: int, data: st.DataObject) -> None:
    deployed = data.draw(st.integers(0, head))
    hint = data.draw(st.one_of(st.none(), st.integers(0, 2 * head)))
    chain = Chain(head, deployed)
    notes = Notes()
    assert asyncio.run(find(chain, hint, notes)) == expected(deployed)
    assert notes.found == [expected(deployed)]
    assert chain.calls.count("eth_getCode") <= 55


@settings(max_examples=100)
@given(age=st.integers(0, 127), head=st.integers(1_000_000, 30_000_000))
def test_a_recent_deployment_needs_no_old_state(age: int, head: int) -> None:
    chain = Chain(head, head - age, state_from=head - 256)
    assert asyncio.run(find(chain, None)) == expected(head - age)


async def test_what_nodes_have_forgotten_stays_unknown_and_is_not_asked_again_at_once() -> None:
    chain = Chain(1_000_000, 5, state_from=999_000)
    clock = ManualClock()
    search = DeploymentSearch(WalletChain(cast(Any, None), cast(Any, None)), clock, note=Notes())
    head = BlockRef(chain.head, block_hash(chain.head), 0)
    assert await search.find(cast(Any, chain), wallet(None), head) is None
    asked = len(chain.calls)
    assert await search.find(cast(Any, chain), wallet(None), head) is None
    assert len(chain.calls) == asked
    clock.advance(601)
    chain.state_from = 0
    assert await search.find(cast(Any, chain), wallet(None), head) == expected(5)


async def test_a_log_of_the_wallet_itself_names_the_transaction() -> None:
    assert await find(Chain(100, 50, events="wallet"), None) == expected(50)


@pytest.mark.parametrize(
    ("receipts", "transaction"),
    [
        (
            [
                {"transactionHash": "0x" + "01" * 32},
                {"transactionHash": TRANSACTION, "contractAddress": "0x" + "11" * 20},
            ],
            TRANSACTION,
        ),
        ([{"transactionHash": TRANSACTION, "contractAddress": None}], TRANSACTION),
        ([{"transactionHash": "0x" + "01" * 32}, {"transactionHash": "0x" + "02" * 32}], None),
        (None, None),
    ],
)
async def test_without_logs_the_receipts_decide_or_nobody(
    receipts: list[dict[str, Any]] | None, transaction: str | None
) -> None:
    chain = Chain(100, 50, events="none")
    chain.receipts = receipts
    assert await find(chain, None) == expected(50, transaction)


async def test_a_slow_search_goes_on_behind_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "PATIENCE_SECONDS", 0.01)
    chain, gate, notes = Chain(100, 50), asyncio.Event(), Notes()
    answer = chain.call

    async def slow(method: str, params: bytes, **options: Any) -> Raw:
        await gate.wait()
        return await answer(method, params, **options)

    monkeypatch.setattr(chain, "call", slow)
    search = DeploymentSearch(WalletChain(cast(Any, None), cast(Any, None)), ManualClock(), note=notes)
    head = BlockRef(chain.head, block_hash(chain.head), 0)
    assert await search.find(cast(Any, chain), wallet(None), head) is None
    gate.set()
    async with asyncio.timeout(30):
        while not notes.found:
            await asyncio.sleep(0)
    assert notes.found == [expected(50)]
    await search.close()
