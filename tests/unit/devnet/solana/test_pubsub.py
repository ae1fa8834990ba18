"""Subscriptions without a network: a session whose messages are kept in a list."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import CreateAccountParams, create_account
from solders.sysvar import CLOCK

from capstan.devnet.solana.pubsub import Hub, Session
from tests.unit.devnet.solana.chain import SOL, Chain


class Listener:
    """One socket's session, and what was sent to it."""

    def __init__(self, hub: Hub) -> None:
        self.messages: list[dict[str, Any]] = []
        self.session = Session(hub, lambda message: self.messages.append(msgspec.json.decode(message)))

    def call(self, method: str, *params: Any) -> Any:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        before = len(self.messages)
        self.session.receive(msgspec.json.encode(request))
        reply = self.messages.pop(before)
        assert reply["id"] == 1
        return reply.get("error") or reply["result"]

    def notifications(self) -> list[tuple[str, Any, int]]:
        """What arrived since the last call: method, result, subscription."""
        taken, self.messages[:] = list(self.messages), []
        return [
            (message["method"], message["params"]["result"], message["params"]["subscription"]) for message in taken
        ]


@pytest.fixture
def chain() -> Chain:
    return Chain(max_subscriptions_per_socket=3)


@pytest.fixture
def hub(chain: Chain) -> Hub:
    return Hub(chain.ledger, chain.settings)


@pytest.fixture
def listener(hub: Hub) -> Listener:
    return Listener(hub)


def commitment(level: str) -> dict[str, str]:
    return {"commitment": level}


def test_slots_and_roots_are_announced(chain: Chain, listener: Listener) -> None:
    slots, roots = listener.call("slotSubscribe"), listener.call("rootSubscribe")
    assert slots != roots
    chain.advance(3)
    assert listener.notifications() == [
        ("slotNotification", {"slot": 2, "parent": 1, "root": 0}, slots),
        ("slotNotification", {"slot": 3, "parent": 2, "root": 0}, slots),
        ("rootNotification", 1, roots),
        ("slotNotification", {"slot": 4, "parent": 3, "root": 1}, slots),
    ]


@pytest.mark.parametrize(("level", "slots"), [("processed", 0), ("confirmed", 1), ("finalized", 3)])
def test_a_signature_is_announced_once_at_its_commitment(
    chain: Chain, listener: Listener, level: str, slots: int
) -> None:
    transaction = chain.transfer(Pubkey.new_unique())
    subscription = listener.call("signatureSubscribe", str(transaction.signatures[0]), commitment(level))
    chain.ledger.execute(transaction)
    if slots:
        chain.advance(slots - 1)
        assert listener.notifications() == []
        chain.advance()
    expected = {"context": {"slot": 1}, "value": {"err": None}}
    assert listener.notifications() == [("signatureNotification", expected, subscription)]
    chain.advance(5)
    assert listener.notifications() == []
    gone = listener.call("signatureUnsubscribe", subscription)
    assert gone == {"code": -32602, "message": "Invalid subscription id."}


def test_a_known_signature_is_announced_at_once_but_after_the_reply(chain: Chain, listener: Listener) -> None:
    transaction = chain.transfer(Pubkey.new_unique())
    chain.ledger.execute(transaction)
    chain.advance()
    subscription = listener.call("signatureSubscribe", str(transaction.signatures[0]), commitment("confirmed"))
    ((method, result, identifier),) = listener.notifications()
    assert (method, identifier) == ("signatureNotification", subscription)
    assert result["value"] == {"err": None}
    waiting = listener.call("signatureSubscribe", str(transaction.signatures[0]))
    assert listener.notifications() == []
    chain.advance(2)
    assert [identifier for _, _, identifier in listener.notifications()] == [waiting]


def test_a_failed_transaction_is_announced_with_its_error(chain: Chain, listener: Listener) -> None:
    key = chain.funded(SOL)
    transaction = chain.transfer(Pubkey.new_unique(), 5 * SOL, source=key)
    listener.call("signatureSubscribe", str(transaction.signatures[0]), commitment("processed"))
    chain.ledger.execute(transaction)
    ((_, result, _),) = listener.notifications()
    assert result["value"] == {"err": {"InstructionError": [0, {"Custom": 1}]}}


def test_receipt_is_announced_before_the_commitment_when_asked_for(chain: Chain, listener: Listener) -> None:
    transaction = chain.transfer(Pubkey.new_unique())
    config = commitment("confirmed") | {"enableReceivedNotification": True}
    listener.call("signatureSubscribe", str(transaction.signatures[0]), config)
    chain.ledger.execute(transaction)
    chain.advance()
    values = [result["value"] for _, result, _ in listener.notifications()]
    assert values == ["receivedSignature", {"err": None}]


@pytest.mark.parametrize(("level", "slots"), [("processed", 0), ("confirmed", 1), ("finalized", 3)])
def test_an_account_is_announced_with_its_state_at_the_commitment(
    chain: Chain, listener: Listener, level: str, slots: int
) -> None:
    to = Pubkey.new_unique()
    listener.call("accountSubscribe", str(to), commitment(level) | {"encoding": "base64"})
    chain.ledger.execute(chain.transfer(to, SOL))
    if slots:
        chain.advance()
        chain.ledger.execute(chain.transfer(to, SOL))  # later than what a final subscriber is told first
        chain.advance(slots - 1)
    (method, result, _), *_ = listener.notifications()
    assert method == "accountNotification"
    assert result["context"] == {"slot": 1}
    assert result["value"]["lamports"] == SOL
    assert result["value"]["data"] == ["", "base64"]


def test_an_account_that_ceases_to_exist_is_announced_empty(chain: Chain, listener: Listener) -> None:
    key = chain.funded(SOL)
    listener.call("accountSubscribe", str(key.pubkey()), commitment("processed"))
    chain.ledger.execute(chain.transfer(chain.key.pubkey(), SOL - 5_000, source=key))
    ((_, result, _),) = listener.notifications()
    assert result["value"]["lamports"] == 0


def test_the_clock_is_an_account_that_changes_every_slot(chain: Chain, listener: Listener) -> None:
    config = commitment("confirmed") | {"encoding": "jsonParsed"}
    listener.call("accountSubscribe", str(CLOCK), config)
    chain.advance(2)
    slots = [result["value"]["data"]["parsed"]["info"]["slot"] for _, result, _ in listener.notifications()]
    assert slots == [1, 2]


def test_an_account_too_long_for_base58_is_announced_anyway(chain: Chain, listener: Listener) -> None:
    created, program = Keypair(), Pubkey.new_unique()
    listener.call("accountSubscribe", str(created.pubkey()), commitment("processed"))
    chain.run([create(chain, created, 200, program)], chain.key, created)
    ((_, result, _),) = listener.notifications()
    assert result["value"]["data"] == "error: data too large for bs58 encoding"
    assert result["value"]["space"] == 200


def create(chain: Chain, new: Keypair, space: int, owner: Pubkey) -> Any:
    return create_account(
        CreateAccountParams(
            from_pubkey=chain.key.pubkey(),
            to_pubkey=new.pubkey(),
            lamports=chain.ledger.rent_exempt_minimum(space),
            space=space,
            owner=owner,
        )
    )


def test_a_programs_accounts_are_announced_if_they_pass_the_filters(chain: Chain, listener: Listener) -> None:
    program = Pubkey.new_unique()
    config = commitment("confirmed") | {"encoding": "base64", "filters": [{"dataSize": 16}]}
    subscription = listener.call("programSubscribe", str(program), config)
    fitting, other = Keypair(), Keypair()
    chain.run([create(chain, fitting, 16, program)], chain.key, fitting)
    chain.run([create(chain, other, 17, program)], chain.key, other)
    chain.advance()
    ((method, result, identifier),) = listener.notifications()
    assert (method, identifier) == ("programNotification", subscription)
    assert result["value"]["pubkey"] == str(fitting.pubkey())
    assert result["value"]["account"]["owner"] == str(program)


def test_logs_are_announced_by_filter(chain: Chain, listener: Listener) -> None:
    to = Pubkey.new_unique()
    everything = listener.call("logsSubscribe", "all", commitment("processed"))
    mentioned = listener.call("logsSubscribe", {"mentions": [str(to)]}, commitment("processed"))
    transaction = chain.transfer(to)
    chain.ledger.execute(transaction)
    chain.ledger.execute(chain.transfer(Pubkey.new_unique()))
    told = listener.notifications()
    assert [identifier for _, _, identifier in told] == [everything, mentioned, everything]
    method, result, _ = told[1]
    assert method == "logsNotification"
    assert result["value"]["signature"] == str(transaction.signatures[0])
    assert result["value"]["err"] is None
    assert result["value"]["logs"][0].endswith("invoke [1]")


def test_nothing_is_announced_after_unsubscribing(chain: Chain, listener: Listener) -> None:
    subscription = listener.call("slotSubscribe")
    assert listener.call("slotUnsubscribe", subscription) is True
    chain.advance()
    assert listener.notifications() == []
    assert listener.call("slotUnsubscribe", subscription)["code"] == -32602


def test_a_session_cannot_end_anothers_subscription(hub: Hub, listener: Listener) -> None:
    subscription = Listener(hub).call("slotSubscribe")
    assert listener.call("slotUnsubscribe", subscription)["message"] == "Invalid subscription id."


def test_subscriptions_are_bounded_and_freed(listener: Listener) -> None:
    first = listener.call("slotSubscribe")
    for _ in range(2):
        listener.call("slotSubscribe")
    refused = listener.call("slotSubscribe")
    assert refused["code"] == -32603
    assert "Subscription refused" in refused["message"]
    listener.call("slotUnsubscribe", first)
    assert isinstance(listener.call("slotSubscribe"), int)


def test_a_closed_session_leaves_nothing_behind(chain: Chain, hub: Hub, listener: Listener) -> None:
    listener.call("slotSubscribe")
    listener.call("programSubscribe", str(Pubkey.default()))
    listener.call("signatureSubscribe", str(Signature.new_unique()))
    listener.session.close()
    chain.funded()
    chain.advance(4)
    assert listener.notifications() == []
    assert hub._index == {}
    assert hub._program_subscriptions == 0


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("accountSubscribe", ["abc"], "Invalid Request: Invalid pubkey provided"),
        ("programSubscribe", ["abc"], "Invalid Request: Invalid pubkey provided"),
        ("signatureSubscribe", ["abc"], "Invalid Request: Invalid signature provided"),
        ("logsSubscribe", [{"mentions": []}], "Invalid Request: Only 1 address supported"),
        ("logsSubscribe", [{"mentions": ["abc"]}], "Invalid Request: Invalid mentions provided"),
        ("logsSubscribe", ["some"], "Invalid params"),
        ("accountSubscribe", [], "`params` should have at least 1 argument(s)"),
    ],
)
def test_a_bad_subscription_says_what_is_wrong(
    listener: Listener, method: str, params: list[Any], message: str
) -> None:
    error = listener.call(method, *params)
    assert error["code"] == -32602
    assert message in error["message"]


def test_a_socket_answers_subscriptions_only(listener: Listener) -> None:
    assert listener.call("getVersion")["solana-core"] == "4.1.2"
    for method in ("getBalance", "voteSubscribe", "blockSubscribe"):
        assert listener.call(method) == {"code": -32601, "message": "Method not found"}
