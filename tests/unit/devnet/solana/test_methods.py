"""The methods, one by one, where a client library would hide what is on the wire: shapes, encodings, error codes."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.sysvar import CLOCK

from capstan.devnet.solana.binary import base58_decode, base58_encode
from tests.unit.devnet.solana.chain import BASE64, MEMO, SOL, Chain, lookup_table, versioned_transfer, wire

PROCESSED = {"commitment": "processed"}
CONFIRMED = {"commitment": "confirmed"}


@pytest.fixture
def chain() -> Chain:
    chain = Chain()
    chain.advance(5)
    return chain


def test_replies_carry_the_slot_they_were_read_at(chain: Chain) -> None:
    address = str(Pubkey.new_unique())
    for commitment, slot in (("processed", 6), ("confirmed", 5), ("finalized", 3)):
        reply = chain.result("getBalance", address, {"commitment": commitment})
        assert reply == {"context": {"apiVersion": "4.1.2", "slot": slot}, "value": 0}
        assert chain.result("getSlot", {"commitment": commitment}) == slot
        assert chain.result("getBlockHeight", {"commitment": commitment}) == slot


def test_a_slot_not_reached_yet_is_refused_with_the_slot_that_is(chain: Chain) -> None:
    assert chain.result("getSlot", {"minContextSlot": 3}) == 3
    error = chain.error("getSlot", {"minContextSlot": 4})
    assert error == {
        "code": -32016,
        "message": "Minimum context slot has not been reached",
        "data": {"contextSlot": 3},
    }


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("getBalance", [], "`params` should have at least 1 argument(s)"),
        ("getBalance", [1], "Invalid params: Expected `str`, got `int`."),
        ("getBalance", ["abc"], "Invalid param: WrongSize"),
        ("getBalance", ["O0l"], "Invalid param: Invalid"),
        ("getBalance", [str(Pubkey.default()), {"commitment": "sure"}], "Invalid params: Invalid enum value 'sure'"),
        ("getBalance", [str(Pubkey.default()), {}, 1], "Expected from 1 to 2 parameters"),
        ("getTransaction", ["abc"], "Invalid param: WrongSize"),
        ("isBlockhashValid", ["abc"], "WrongSize"),
        ("getBlock", [-1], "Invalid params: Expected `int` >= 0"),
        ("getBlock", [2**64], "expected u64"),
        ("getBlock", [1, PROCESSED], "Method does not support commitment below `confirmed`"),
        ("getBlocks", [0, 1, PROCESSED], "Method does not support commitment below `confirmed`"),
        ("getSignaturesForAddress", [str(Pubkey.default()), {"limit": 1001}], "Invalid limit; max 1000"),
        ("getSignaturesForAddress", [str(Pubkey.default()), {"limit": 0}], "Invalid limit; max 1000"),
        ("getMultipleAccounts", [[str(Pubkey.default())] * 101], "Too many inputs provided; max 100"),
        ("getSignatureStatuses", [[str(Signature.default())] * 257], "Too many inputs provided; max 256"),
        ("getProgramAccounts", [str(MEMO), {"filters": [{"dataSize": 1}] * 5}], "Too many filters provided; max 4"),
        ("getProgramAccounts", [str(MEMO), {"filters": [{}]}], "either `dataSize` or `memcmp`"),
        (
            "getProgramAccounts",
            [str(MEMO), {"filters": [{"memcmp": {"offset": 0, "bytes": "0"}}]}],
            "Invalid param: InvalidCharacter",
        ),
        (
            "getProgramAccounts",
            [str(MEMO), {"filters": [{"memcmp": {"offset": 0, "bytes": "1" * 129}}]}],
            "Invalid param: DataTooLarge",
        ),
        ("getTokenAccountBalance", [str(Pubkey.new_unique())], "Invalid param: could not find account"),
        ("getTokenAccountBalance", [str(MEMO)], "Invalid param: not a Token account"),
        ("getTokenSupply", [str(MEMO)], "Invalid param: not a Token mint"),
        ("getTokenAccountsByOwner", [str(MEMO), {}], "expected `mint` or `programId`"),
        ("getTokenAccountsByOwner", [str(MEMO), {"programId": str(MEMO)}], "unrecognized Token program id"),
        ("getTokenAccountsByOwner", [str(MEMO), {"mint": str(Pubkey.new_unique())}], "could not find mint"),
        ("sendTransaction", ["0"], "invalid base58 encoding: InvalidCharacter"),
        ("sendTransaction", ["!", BASE64], "invalid base64 encoding"),
        ("sendTransaction", ["AAAA", BASE64], "failed to deserialize solana_transaction"),
        ("sendTransaction", ["A" * 1648, BASE64], "base64 encoded solana_transaction"),
        ("sendTransaction", ["AAAA", {"encoding": "json"}], "unsupported encoding: json. Supported encodings: base58"),
        ("getFeeForMessage", ["AAAA"], "failed to deserialize solana_message"),
    ],
)
def test_bad_parameters_say_what_is_wrong(chain: Chain, method: str, params: list[Any], message: str) -> None:
    error = chain.error(method, *params)
    assert error["code"] == -32602
    assert message in error["message"]


def test_account_data_in_every_encoding(chain: Chain) -> None:
    address = str(CLOCK)
    account = chain.ledger.account(CLOCK, chain.ledger.slot)
    assert account is not None
    data = account.data

    def encoded(**config: Any) -> Any:
        return chain.result("getAccountInfo", address, PROCESSED | config)["value"]["data"]

    assert encoded() == base58_encode(data)
    assert encoded(encoding="base58") == [base58_encode(data), "base58"]
    assert encoded(encoding="base64") == [base64.b64encode(data).decode(), "base64"]
    assert encoded(encoding="base64", dataSlice={"offset": 8, "length": 4}) == [
        base64.b64encode(data[8:12]).decode(),
        "base64",
    ]
    assert encoded(encoding="base64", dataSlice={"offset": 99, "length": 4}) == ["", "base64"]
    assert encoded(encoding="jsonParsed")["parsed"]["info"]["slot"] == chain.ledger.slot


def test_data_too_long_for_base58_asks_for_base64(chain: Chain) -> None:
    error = chain.error("getAccountInfo", str(MEMO))
    assert error["code"] == -32600
    assert "should be less than 128 bytes, please use Base64" in error["message"]


def test_parsed_data_without_a_parser_is_base64(chain: Chain) -> None:
    value = chain.result("getAccountInfo", str(MEMO), {"encoding": "jsonParsed"})["value"]
    assert value["data"][1] == "base64"
    assert value["space"] == len(base64.b64decode(value["data"][0]))
    assert value["executable"] is True


def test_missing_accounts_are_null(chain: Chain) -> None:
    missing = str(Pubkey.new_unique())
    assert chain.result("getAccountInfo", missing)["value"] is None
    values = chain.result("getMultipleAccounts", [missing, str(CLOCK)])["value"]
    assert values[0] is None
    assert values[1]["data"][1] == "base64"


def test_program_accounts_are_filtered_and_sliced(chain: Chain) -> None:
    loader = "BPFLoaderUpgradeab1e11111111111111111111111"

    def addresses(*filters: Any) -> set[str]:
        config = {"encoding": "base64", "filters": list(filters), "dataSlice": {"offset": 0, "length": 0}}
        found = chain.result("getProgramAccounts", loader, config)
        assert all(item["account"]["data"] == ["", "base64"] for item in found)
        return {item["pubkey"] for item in found}

    everything = addresses()
    programs = addresses({"dataSize": 36})
    token = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"
    assert token in programs < everything
    state = base58_encode((2).to_bytes(4, "little"))
    assert addresses({"memcmp": {"offset": 0, "bytes": state}}) == programs
    assert addresses({"memcmp": {"offset": 0, "bytes": "AgAAAA==", "encoding": "base64"}}) == programs
    assert addresses({"memcmp": {"offset": 0, "bytes": [2, 0, 0, 0]}}) == programs
    assert addresses({"dataSize": 36}, {"memcmp": {"offset": 0, "bytes": base58_encode(b"\x03")}}) == set()
    assert addresses({"memcmp": {"offset": 10**9, "bytes": state}}) == set()
    wrapped = chain.result("getProgramAccounts", loader, {"encoding": "base64", "withContext": True})
    assert wrapped["context"]["slot"] == 3
    assert len(wrapped["value"]) == len(everything)


def test_blockhashes_know_how_long_they_last(chain: Chain) -> None:
    latest = chain.result("getLatestBlockhash", CONFIRMED)
    assert latest["value"]["lastValidBlockHeight"] == latest["context"]["slot"] + 150
    blockhash = latest["value"]["blockhash"]
    assert chain.result("isBlockhashValid", blockhash, CONFIRMED)["value"] is True
    assert chain.result("isBlockhashValid", blockhash)["value"] is False  # the final block does not know it yet
    chain.advance(150)
    assert chain.result("isBlockhashValid", blockhash, CONFIRMED)["value"] is True
    chain.advance()
    assert chain.result("isBlockhashValid", blockhash, CONFIRMED)["value"] is False


def test_a_transaction_is_found_from_confirmed_on_and_final_later(chain: Chain) -> None:
    signature = chain.result("sendTransaction", wire(chain.transfer(Pubkey.new_unique())), BASE64)
    assert chain.result("getTransaction", signature, CONFIRMED) is None
    chain.advance()
    assert chain.result("getTransaction", signature, CONFIRMED)["slot"] == 6
    assert chain.result("getTransaction", signature) is None
    chain.advance(2)
    assert chain.result("getTransaction", signature, "json")["slot"] == 6
    assert chain.error("getTransaction", signature, PROCESSED)["code"] == -32602


def test_statuses_older_than_the_cache_need_the_history(chain: Chain) -> None:
    signature = chain.result("sendTransaction", wire(chain.transfer(Pubkey.new_unique())), BASE64)
    chain.advance(301)
    assert chain.result("getSignatureStatuses", [signature])["value"] == [None]
    (status,) = chain.result("getSignatureStatuses", [signature], {"searchTransactionHistory": True})["value"]
    assert status["confirmationStatus"] == "finalized"
    assert status["confirmations"] is None


def test_a_versioned_transaction_is_shown_only_to_those_who_know_it(chain: Chain) -> None:
    to = Pubkey.new_unique()
    table = lookup_table(chain, [Pubkey.new_unique(), to])
    transaction = versioned_transfer(chain, table, to, SOL)
    signature = chain.result("sendTransaction", wire(transaction), BASE64)
    slot = chain.ledger.slot
    chain.advance(3)
    for method, subject in (("getTransaction", signature), ("getBlock", slot)):
        error = chain.error(method, subject)
        assert error["code"] == -32015
        assert error["message"].endswith('"maxSupportedTransactionVersion": 0')
    found = chain.result("getTransaction", signature, {"maxSupportedTransactionVersion": 0})
    assert found["version"] == 0
    assert found["meta"]["loadedAddresses"] == {"writable": [str(to)], "readonly": []}
    assert found["transaction"]["message"]["addressTableLookups"] == [
        {"accountKey": str(table), "writableIndexes": [1], "readonlyIndexes": []}
    ]
    parsed = chain.result("getTransaction", signature, {"maxSupportedTransactionVersion": 0, "encoding": "jsonParsed"})
    looked_up = parsed["transaction"]["message"]["accountKeys"][-1]
    assert looked_up == {"pubkey": str(to), "signer": False, "source": "lookupTable", "writable": True}
    table_state = chain.result("getAccountInfo", str(table), {"encoding": "jsonParsed"})["value"]["data"]["parsed"]
    assert table_state["info"]["addresses"][1] == str(to)


def test_a_legacy_transaction_says_its_version_only_when_asked(chain: Chain) -> None:
    signature = chain.result("sendTransaction", wire(chain.transfer(Pubkey.new_unique())), BASE64)
    chain.advance(3)
    assert "version" not in chain.result("getTransaction", signature)
    assert chain.result("getTransaction", signature, {"maxSupportedTransactionVersion": 0})["version"] == "legacy"


def test_a_block_holds_its_transactions_in_order(chain: Chain) -> None:
    sent = [chain.transfer(Pubkey.new_unique(), SOL + number) for number in range(3)]
    signatures = [chain.result("sendTransaction", wire(transaction), BASE64) for transaction in sent]
    slot = chain.ledger.slot
    chain.advance(3)
    block = chain.result("getBlock", slot, {"transactionDetails": "signatures", "rewards": False})
    assert block["signatures"] == signatures
    assert "rewards" not in block
    assert "transactions" not in block
    assert block["parentSlot"] == slot - 1
    assert block["blockHeight"] == slot
    assert block["previousBlockhash"] == chain.result("getBlock", slot - 1)["blockhash"]
    full = chain.result("getBlock", slot, {"encoding": "base64"})
    assert [item["transaction"] for item in full["transactions"]] == [[wire(item), "base64"] for item in sent]
    accounts = chain.result("getBlock", slot, {"transactionDetails": "accounts"})
    assert accounts["transactions"][0]["transaction"]["accountKeys"][0]["pubkey"] == str(chain.key.pubkey())
    assert "logMessages" not in accounts["transactions"][0]["meta"]


def test_blocks_to_come_and_blocks_dropped_have_different_errors() -> None:
    chain = Chain(max_blocks=5)
    chain.advance(20)
    assert chain.error("getBlock", 20) == {"code": -32004, "message": "Block not available for slot 20"}
    assert chain.error("getBlockTime", 500)["code"] == -32004
    first = chain.result("getFirstAvailableBlock")
    assert first == chain.result("minimumLedgerSlot") > 0
    assert chain.error("getBlock", 1) == {
        "code": -32001,
        "message": f"Block 1 cleaned up, does not exist on node. First available block: {first}",
    }
    assert chain.error("getBlockTime", 1)["code"] == -32001
    assert chain.result("getBlocks", 0)[0] == first


def test_ranges_of_blocks_end_at_the_commitment(chain: Chain) -> None:
    assert chain.result("getBlocks", 1) == [1, 2, 3]
    assert chain.result("getBlocks", 1, CONFIRMED) == [1, 2, 3, 4, 5]
    assert chain.result("getBlocks", 1, 2) == [1, 2]
    assert chain.result("getBlocks", 1, 4, CONFIRMED) == [1, 2, 3, 4]
    assert chain.result("getBlocks", 4, 2) == []
    assert chain.result("getBlocksWithLimit", 1, 2) == [1, 2]
    assert chain.result("getBlocksWithLimit", 2, 100, CONFIRMED) == [2, 3, 4, 5]


def test_block_times_follow_the_clock(chain: Chain) -> None:
    assert chain.result("getBlockTime", chain.ledger.slot) == int(chain.now)
    assert chain.result("getBlockTime", 0) == 1_700_000_000


def test_signatures_of_an_address_page_backwards(chain: Chain) -> None:
    to = Pubkey.new_unique()
    signatures = []
    for number in range(5):
        signatures.append(chain.result("sendTransaction", wire(chain.transfer(to, SOL + number)), BASE64))
        chain.advance(number % 2)
    chain.advance(3)
    newest_first = signatures[::-1]

    def listed(**config: Any) -> list[str]:
        return [item["signature"] for item in chain.result("getSignaturesForAddress", str(to), config)]

    assert listed() == newest_first
    assert listed(limit=2) == newest_first[:2]
    assert listed(before=newest_first[1]) == newest_first[2:]
    assert listed(until=newest_first[3]) == newest_first[:3]
    assert listed(before=newest_first[0], until=newest_first[3]) == newest_first[1:3]
    assert listed(before=str(Signature.new_unique())) == []


def test_a_memo_is_listed_with_its_signature(chain: Chain) -> None:
    memo = Instruction(MEMO, "grüße".encode(), [AccountMeta(chain.key.pubkey(), True, False)])
    chain.run([memo])
    chain.advance(3)
    (entry,) = chain.result("getSignaturesForAddress", str(MEMO))
    assert entry["memo"] == "[7] grüße"
    found = chain.result("getTransaction", entry["signature"], "jsonParsed")
    instruction = found["transaction"]["message"]["instructions"][0]
    assert (instruction["program"], instruction["parsed"]) == ("spl-memo", "grüße")


def test_epochs_are_those_of_the_schedule(chain: Chain) -> None:
    chain.advance(40)
    info = chain.result("getEpochInfo", PROCESSED)
    assert (info["epoch"], info["slotIndex"], info["slotsInEpoch"]) == (1, 46 - 32, 64)
    schedule = chain.result("getEpochSchedule")
    assert schedule["firstNormalEpoch"] == 14
    assert schedule["slotsPerEpoch"] == 432_000


def test_supply_is_all_there_is(chain: Chain) -> None:
    supply = chain.result("getSupply", PROCESSED)["value"]
    assert supply["total"] == supply["circulating"] >= 500_000_000 * SOL
    assert supply["nonCirculating"] == 0
    assert supply["nonCirculatingAccounts"] == []


def test_the_node_leads_every_slot(chain: Chain) -> None:
    identity = chain.result("getIdentity")["identity"]
    assert chain.result("getSlotLeader") == identity
    assert chain.result("getSlotLeaders", 1, 3) == [identity] * 3
    assert len(base58_decode(identity)) == 32


@pytest.mark.parametrize("method", ["getVoteAccounts", "getClusterNodes", "getLargestAccounts", "getInflationRate"])
def test_what_the_node_cannot_know_is_not_a_method(chain: Chain, method: str) -> None:
    assert chain.error(method) == {"code": -32601, "message": "Method not found"}


def test_rent_exemption_and_its_bound(chain: Chain) -> None:
    assert chain.result("getMinimumBalanceForRentExemption", 165) == 2_039_280
    assert chain.error("getMinimumBalanceForRentExemption", 11 * 1024 * 1024)["code"] == -32600


def test_there_are_no_snapshots(chain: Chain) -> None:
    assert chain.error("getHighestSnapshotSlot") == {"code": -32008, "message": "No snapshot"}


def test_the_message_of_a_landed_transaction_is_complete(chain: Chain) -> None:
    transaction = chain.transfer(Pubkey.new_unique())
    signature = chain.result("sendTransaction", wire(transaction), BASE64)
    chain.advance(3)
    message = chain.result("getTransaction", signature)["transaction"]["message"]
    rebuilt = Message.new_with_compiled_instructions(
        message["header"]["numRequiredSignatures"],
        message["header"]["numReadonlySignedAccounts"],
        message["header"]["numReadonlyUnsignedAccounts"],
        [Pubkey.from_string(key) for key in message["accountKeys"]],
        Hash.from_string(message["recentBlockhash"]),
        transaction.message.instructions,
    )
    assert rebuilt == transaction.message
    assert base58_decode(message["instructions"][0]["data"]) == transaction.message.instructions[0].data
