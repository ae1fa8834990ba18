"""Events of a real chain, delivered by a real service to a real receiver: every type, every field, every signature."""

from collections.abc import Iterator
from typing import Any

import pytest
from eth_abi.abi import encode
from eth_account import Account
from eth_utils.crypto import keccak
from standardwebhooks import Webhook as StandardWebhook

from capstan.devnet.evm import CHAIN_ID
from tests.support.devnet import EvmDevnet, wait_until
from tests.support.webhooks import Hooks, Received, Receiver, mint, openssl_hmac, serving_webhooks

SENDER = 11
ZERO = "0x" + "0" * 40


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet) -> Iterator[Hooks]:
    with serving_webhooks(tmp_path_factory.mktemp("hooks"), evm_devnet, extra_namespaces=["debug"]) as running:
        yield running
        assert "exception" not in running.gateway.service.log_text, running.gateway.service.log_text


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def received(receiver: Receiver, path: str, count: int = 1) -> list[Received]:
    wait_until(lambda: len(receiver.at(path)) >= count, 60, f"{count} requests to {path}")
    return receiver.at(path)


def stranger() -> str:
    return str(Account.create().address)


def check_signature(request: Received, secret: str) -> None:
    """By others: the package of Standard Webhooks, and openssl for the signature of the format."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert headers["content-type"] == "application/json"
    StandardWebhook(secret).verify(request.body, headers)
    assert headers["webhook-id"] == request.json["id"]
    if "event_type" in request.json:
        content = headers["x-service-timestamp"].encode() + b"." + request.body
        assert headers["x-service-signature"] == openssl_hmac(secret.encode(), content).hex()
    else:
        assert headers["x-platform-signature"] == "sha256=" + openssl_hmac(secret.encode(), request.body).hex()
        assert headers["x-webhook-event"] == request.json["type"]
        assert headers["x-webhook-idempotency-key"] == request.json["id"]


class Watch:
    """A webhook of one type with a path of its own."""

    def __init__(self, hooks: Hooks, receiver: Receiver, event_type: str, **config: Any) -> None:
        self.path = f"/{event_type}/{stranger()}"
        self.receiver = receiver
        self.webhook = hooks.created(receiver.url(self.path), event_type=event_type, config=config)

    def events(self, count: int = 1) -> list[dict[str, Any]]:
        """What was delivered, every signature checked."""
        found = received(self.receiver, self.path, count)
        for request in found:
            check_signature(request, self.webhook["signing_secret"])
        assert len({request.json["id"] for request in found}) == len(found)
        return [request.json for request in found]


def test_native_transfers_in_both_formats(hooks: Hooks, receiver: Receiver) -> None:
    to, sender = stranger(), hooks.devnet.deployment.accounts[SENDER]
    small = Watch(hooks, receiver, "address_activity", addresses=[to.lower()])
    large = Watch(hooks, receiver, "ADDRESS_ACTIVITY", addresses=[to])
    receipt = hooks.devnet.send(sender, to, value=15 * 10**17)
    number = int(receipt["blockNumber"], 16)
    (event,) = small.events()
    assert event.keys() == {"id", "event_type", "webhook_id", "created_at", "data"}
    assert event["id"].startswith("evt_")
    assert event["webhook_id"] == small.webhook["id"]
    assert event["data"] == {
        "chain": "ethereum",
        "block_number": number,
        "tx_hash": receipt["transactionHash"],
        "from": sender.address,
        "to": to,
        "value": str(15 * 10**17),
        "asset": "ETH",
        "contract": None,
        "direction": "incoming",
    }
    (event,) = large.events()
    assert event.keys() == {"id", "type", "createdAt", "chain", "chainId", "data"}
    assert (event["type"], event["chain"], event["chainId"]) == ("ADDRESS_ACTIVITY", "ethereum", 31337)
    assert len(event["createdAt"]) == len("2026-01-31T12:00:00.000Z")
    assert event["data"] == {
        "blockNumber": number,
        "transactionHash": receipt["transactionHash"],
        "from": sender.address,
        "to": to,
        "value": str(15 * 10**17),
        "valueFormatted": "1.5",
        "asset": "ETH",
        "token": None,
        "direction": "incoming",
    }


def test_token_transfers_in_both_formats(hooks: Hooks, receiver: Receiver) -> None:
    to, minter = stranger(), hooks.devnet.deployment.accounts[SENDER]
    token = hooks.devnet.deployment.tokens[0]
    small = Watch(hooks, receiver, "token_transfer", addresses=[to])
    large = Watch(hooks, receiver, "TOKEN_TRANSFER", receivers=[to], min_value="100")
    activity = Watch(hooks, receiver, "address_activity", addresses=[to])
    mint(hooks.devnet, minter, token.address, to, 99)
    receipt = mint(hooks.devnet, minter, token.address, to, 12345)
    number = int(receipt["blockNumber"], 16)
    event = small.events(2)[1]
    assert event["data"] == {
        "chain": "ethereum",
        "block_number": number,
        "tx_hash": receipt["transactionHash"],
        "contract": token.address,
        "from": ZERO,
        "to": to,
        "value": "12345",
        "symbol": token.symbol,
        "decimals": token.decimals,
    }
    (event,) = large.events()
    assert event["data"]["token"] == {"address": token.address, "symbol": token.symbol, "decimals": token.decimals}
    assert event["data"]["value"] == "12345"
    assert event["data"]["logIndex"] == int(receipt["logs"][0]["logIndex"], 16)
    shown = event["data"]["valueFormatted"]
    assert int(shown.replace(".", "").lstrip("0").ljust(5, "0")[:5]) == 12345
    event = activity.events(2)[1]
    assert (event["data"]["asset"], event["data"]["contract"]) == (token.symbol, token.address)
    assert event["data"]["direction"] == "incoming"


def test_nft_transfers_logs_blocks_and_mined_transactions(hooks: Hooks, receiver: Receiver) -> None:
    to, minter = stranger(), hooks.devnet.deployment.accounts[SENDER]
    nft = next(each for each in hooks.devnet.deployment.nfts if each.standard == "ERC721")
    small = Watch(hooks, receiver, "nft_transfer", addresses=[to])
    large = Watch(hooks, receiver, "NFT_ACTIVITY", addresses=[to], contracts=[nft.address])
    topic = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
    word = "0x" + "0" * 24 + to[2:].lower()
    logs = Watch(hooks, receiver, "log", addresses=[nft.address], topics=[[topic], None, word])
    blocks = Watch(hooks, receiver, "NEW_BLOCK", every=1)
    token_id = int(to, 16) % 2**128
    receipt = mint(hooks.devnet, minter, nft.address, to, token_id)
    (event,) = small.events()
    assert event["data"] == {
        "chain": "ethereum",
        "block_number": int(receipt["blockNumber"], 16),
        "tx_hash": receipt["transactionHash"],
        "contract": nft.address,
        "from": ZERO,
        "to": to,
        "token_id": str(token_id),
        "standard": "ERC721",
        "quantity": 1,
    }
    (event,) = large.events()
    assert (event["data"]["activity"], event["data"]["tokenId"]) == ("mint", str(token_id))
    assert set(event["data"]["metadata"] or {}) in (set(), {"name", "imageUrl", "traits"})
    (event,) = logs.events()
    assert event["data"].keys() == {"chain", "block_number", "tx_hash", "log_index", "contract", "topics", "data"}
    assert event["data"]["topics"][2] == word
    hooks.devnet.mine(2)
    first, second = [each["data"] for each in blocks.events(2)[:2]]
    assert second["blockNumber"] == first["blockNumber"] + 1
    assert second["parentHash"] == first["blockHash"]
    block = hooks.devnet.call("eth_getBlockByNumber", hex(first["blockNumber"]), False)
    assert first["transactionCount"] == len(block["transactions"])
    assert first["gasUsed"] == str(int(block["gasUsed"], 16))
    hooks.delete(blocks.webhook["id"])


def test_a_transaction_is_told_when_it_has_its_confirmations(hooks: Hooks, receiver: Receiver) -> None:
    sender = hooks.devnet.deployment.accounts[SENDER]
    transaction = {
        "chainId": CHAIN_ID,
        "nonce": int(hooks.devnet.call("eth_getTransactionCount", sender.address, "pending"), 16),
        "to": stranger(),
        "value": 1,
        "gas": 21_000,
        "gasPrice": 20 * 10**9,
    }
    signed = Account.sign_transaction(transaction, sender.private_key)
    tx_hash = "0x" + signed.hash.hex()
    small = Watch(hooks, receiver, "mined_transaction", tx_hashes=[tx_hash])
    large = Watch(hooks, receiver, "MINED_TRANSACTION", tx_hashes=[tx_hash], confirmations=3)
    hooks.devnet.call("eth_sendRawTransaction", "0x" + signed.raw_transaction.hex())
    hooks.devnet.mine_transaction(tx_hash)
    (event,) = small.events()
    assert (event["data"]["status"], event["data"]["confirmations"]) == ("success", 1)
    assert event["data"]["gas_used"] == "21000"
    hooks.devnet.mine(2)
    (event,) = large.events()
    assert event["data"]["confirmations"] == 3
    head = int(hooks.devnet.call("eth_blockNumber"), 16)
    assert head >= event["data"]["blockNumber"] + 2
    # It is told at once of one that is mined already.
    (event,) = Watch(hooks, receiver, "mined_transaction", tx_hashes=[tx_hash]).events()
    assert event["data"] == small.events()[0]["data"]


def test_the_operator_looks_tests_replays_rotates_and_disables(hooks: Hooks, receiver: Receiver) -> None:
    to, sender = stranger(), hooks.devnet.deployment.accounts[SENDER]
    watch = Watch(hooks, receiver, "address_activity", addresses=[to])
    webhook_id = watch.webhook["id"]
    receipt = hooks.devnet.send(sender, to, value=1)
    (event,) = watch.events()
    wait_until(lambda: bool(hooks.run("webhooks", "attempts", webhook_id)), 60, "the attempt in the log")
    (attempt,) = hooks.run("webhooks", "attempts", webhook_id)
    assert (attempt["event_id"], attempt["status"], attempt["response"]) == (event["id"], 200, "ok")
    assert webhook_id in [each["id"] for each in hooks.run("webhooks", "list")]
    number = str(int(receipt["blockNumber"], 16))
    for selection in (("--event", event["id"]), ("--from-block", number, "--to-block", number)):
        before = len(receiver.at(watch.path))
        assert hooks.run("webhooks", "replay", webhook_id, *selection) == {"replayed": 1}
        again = received(receiver, watch.path, before + 1)[-1]
        assert again.json == event
    secret = hooks.run("webhooks", "rotate", webhook_id)["signing_secret"]
    before = len(receiver.at(watch.path))
    hooks.devnet.send(sender, to, value=2)
    signed = received(receiver, watch.path, before + 1)[-1]
    check_signature(
        Received(
            signed.path,
            {**signed.headers, "webhook-signature": signed.headers["webhook-signature"].split()[0]},
            signed.body,
        ),
        secret,
    )
    assert len(signed.headers["webhook-signature"].split()) == 2
    assert hooks.run("webhooks", "disable", webhook_id)["status"] == "disabled"
    answer = hooks.change(webhook_id, status="active")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert hooks.run("webhooks", "resume", webhook_id)["status"] == "active"


def test_a_transaction_of_the_mempool_is_told_once(hooks: Hooks, receiver: Receiver) -> None:
    to, sender = stranger(), hooks.devnet.deployment.accounts[SENDER]
    watch = Watch(hooks, receiver, "PENDING_TRANSACTION", addresses=[to])

    def told() -> bool:
        # The mempool is watched from shortly after the webhook is there; a transaction before that is not seen.
        hooks.devnet.send(sender, to, value=3)
        return bool(receiver.at(watch.path))

    wait_until(told, 60, "a pending transaction")
    event = watch.events()[0]
    assert event["data"].keys() == {
        *("transactionHash", "from", "to", "value", "nonce", "input"),
        *("maxFeePerGas", "maxPriorityFeePerGas", "firstSeenAt"),
    }
    assert (event["data"]["to"], event["data"]["value"]) == (to, "3")


def test_internal_transfers_are_told_and_what_was_reverted_is_not(hooks: Hooks, receiver: Receiver) -> None:
    multicall, sender = hooks.devnet.deployment.multicall3, hooks.devnet.deployment.accounts[SENDER]
    first, second, token = stranger(), stranger(), hooks.devnet.deployment.tokens[0].address
    watch = Watch(hooks, receiver, "INTERNAL_TRANSFER", addresses=[first, second, token])
    large = Watch(hooks, receiver, "INTERNAL_TRANSFER", addresses=[first, second, token], min_value="9")
    # The token takes no coins, so the third call reverts; the others stand.
    calls = [(first, True, 7, b""), (second, True, 9, b""), (token, True, 5, b"")]
    data = keccak(b"aggregate3Value((address,bool,uint256,bytes)[])")[:4]
    data += encode(["(address,bool,uint256,bytes)[]"], [calls])
    receipt = hooks.devnet.send(sender, multicall, data=data, value=21, gas=500_000)
    assert receipt["status"] == "0x1"
    found = watch.events(2)
    assert [event["data"] for event in found] == [
        {
            "blockNumber": int(receipt["blockNumber"], 16),
            "transactionHash": receipt["transactionHash"],
            "traceAddress": [place],
            "callType": "call",
            "from": multicall,
            "to": to,
            "value": str(value),
            "valueFormatted": f"0.{value:018d}",
        }
        for place, to, value in ((0, first, 7), (1, second, 9))
    ]
    assert [event["data"]["to"] for event in large.events(1)] == [second]
