"""Sending, simulating, airdrops and fees on the wire: what is refused, with which error, and what it leaves behind."""

from __future__ import annotations

import base64

import pytest
from solders.compute_budget import set_compute_unit_price
from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from capstan.devnet.solana.binary import base58_encode
from capstan.devnet.solana.records import Commitment
from tests.unit.devnet.solana.chain import BASE64, SOL, Chain, versioned_transfer, wire

PROCESSED = {"commitment": "processed"}


@pytest.fixture
def chain() -> Chain:
    chain = Chain()
    chain.advance(5)
    return chain


def test_a_sent_transaction_with_an_old_blockhash_is_refused_as_solana_does(chain: Chain) -> None:
    transaction = chain.transfer(Pubkey.new_unique())
    chain.advance(151)
    error = chain.error("sendTransaction", wire(transaction), BASE64)
    assert error["code"] == -32002
    assert error["message"] == "Transaction simulation failed: Blockhash not found"
    assert error["data"]["err"] == "BlockhashNotFound"
    assert error["data"]["logs"] == []


def test_a_failing_transaction_is_stopped_before_it_costs_anything(chain: Chain) -> None:
    key = chain.funded(SOL)
    transaction = chain.transfer(Pubkey.new_unique(), 5 * SOL, source=key)
    error = chain.error("sendTransaction", wire(transaction), BASE64)
    assert error["code"] == -32002
    assert (
        error["message"] == "Transaction simulation failed: Error processing Instruction 0: custom program error: 0x1"
    )
    assert error["data"]["err"] == {"InstructionError": [0, {"Custom": 1}]}
    assert any("insufficient lamports" in line for line in error["data"]["logs"])
    assert chain.balance(key.pubkey(), Commitment.PROCESSED) == SOL


def test_without_preflight_a_failing_transaction_lands_and_fails(chain: Chain) -> None:
    key = chain.funded(SOL)
    transaction = chain.transfer(Pubkey.new_unique(), 5 * SOL, source=key)
    signature = chain.result("sendTransaction", wire(transaction), BASE64 | {"skipPreflight": True})
    (status,) = chain.result("getSignatureStatuses", [signature])["value"]
    assert status["err"] == {"InstructionError": [0, {"Custom": 1}]}
    assert status["status"] == {"Err": status["err"]}
    assert status["confirmationStatus"] == "processed"


def test_without_preflight_an_unpayable_transaction_just_vanishes(chain: Chain) -> None:
    transaction = chain.transfer(Pubkey.new_unique(), 1, source=Keypair())
    signature = chain.result("sendTransaction", wire(transaction), BASE64 | {"skipPreflight": True})
    assert signature == str(transaction.signatures[0])
    assert chain.result("getSignatureStatuses", [signature])["value"] == [None]


def test_a_wrong_signature_is_its_own_error(chain: Chain) -> None:
    good = chain.transfer(Pubkey.new_unique())
    forged = VersionedTransaction.populate(good.message, [Signature.new_unique()])
    assert chain.error("sendTransaction", wire(forged), BASE64) == {
        "code": -32003,
        "message": "Transaction signature verification failure",
    }
    error = chain.error("simulateTransaction", wire(forged), BASE64 | {"sigVerify": True})
    assert error["code"] == -32003
    assert chain.result("simulateTransaction", wire(forged), BASE64)["value"]["err"] is None
    signature = chain.result("sendTransaction", wire(forged), BASE64 | {"skipPreflight": True})
    assert chain.result("getSignatureStatuses", [signature])["value"] == [None]


def test_a_transaction_may_be_sent_in_base58(chain: Chain) -> None:
    transaction = chain.transfer(Pubkey.new_unique())
    assert chain.result("sendTransaction", base58_encode(bytes(transaction))) == str(transaction.signatures[0])


def test_a_transaction_that_points_nowhere_is_bad_parameters(chain: Chain) -> None:
    unsigned = VersionedTransaction.populate(chain.transfer(Pubkey.new_unique()).message, [])
    error = chain.error("sendTransaction", wire(unsigned), BASE64)
    assert error["code"] == -32602
    assert error["message"] == "invalid transaction: Transaction failed to sanitize accounts offsets correctly"
    missing = versioned_transfer(chain, Pubkey.new_unique(), Pubkey.new_unique(), SOL)
    error = chain.error("sendTransaction", wire(missing), BASE64)
    assert error["message"] == "invalid transaction: Transaction loads an address table account that doesn't exist"


def test_simulation_shows_the_state_it_would_leave_and_leaves_none(chain: Chain) -> None:
    to = Pubkey.new_unique()
    transaction = chain.transfer(to, SOL)
    config = BASE64 | {"accounts": {"addresses": [str(to)], "encoding": "base64"}, "innerInstructions": True}
    value = chain.result("simulateTransaction", wire(transaction), config)["value"]
    assert value["err"] is None
    assert value["accounts"][0]["lamports"] == SOL
    assert value["unitsConsumed"] == 150
    assert value["innerInstructions"] == []
    assert value["postBalances"][1] - value["preBalances"][1] == SOL
    assert value["fee"] == 5_000
    assert chain.balance(to, Commitment.PROCESSED) == 0


def test_simulation_can_supply_the_blockhash(chain: Chain) -> None:
    stale = chain.transfer(Pubkey.new_unique(), blockhash=Hash.new_unique())
    assert chain.result("simulateTransaction", wire(stale), BASE64)["value"]["err"] == "BlockhashNotFound"
    config = BASE64 | {"replaceRecentBlockhash": True}
    value = chain.result("simulateTransaction", wire(stale), config)["value"]
    assert value["err"] is None
    assert chain.result("isBlockhashValid", value["replacementBlockhash"]["blockhash"], PROCESSED)["value"] is True
    error = chain.error("simulateTransaction", wire(stale), config | {"sigVerify": True})
    assert error["message"] == "sigVerify may not be used with replaceRecentBlockhash"


def test_a_failed_simulation_shows_no_accounts(chain: Chain) -> None:
    to = Pubkey.new_unique()
    transaction = chain.transfer(to, 10**18)
    wanted = {"accounts": {"addresses": [str(to)], "encoding": "base64"}}
    assert chain.result("simulateTransaction", wire(transaction), BASE64 | wanted)["value"]["accounts"] == [None]
    too_many = {"accounts": {"addresses": [str(to)] * 4, "encoding": "base64"}}
    error = chain.error("simulateTransaction", wire(transaction), BASE64 | too_many)
    assert error["message"] == "Too many accounts provided; max 3"


def test_the_fee_told_is_the_fee_charged(chain: Chain) -> None:
    key = chain.funded(SOL)
    pay = transfer(TransferParams(from_pubkey=key.pubkey(), to_pubkey=chain.key.pubkey(), lamports=1))
    transaction = chain.transaction([set_compute_unit_price(2_000_000), pay], key)
    message = base64.b64encode(bytes(transaction.message)).decode()
    fee = chain.result("getFeeForMessage", message, PROCESSED)["value"]
    assert fee > 5_000
    chain.result("sendTransaction", wire(transaction), BASE64)
    assert chain.balance(key.pubkey(), Commitment.PROCESSED) == SOL - 1 - fee


def test_there_is_no_fee_for_a_blockhash_nobody_knows(chain: Chain) -> None:
    message = chain.transfer(Pubkey.new_unique(), blockhash=Hash.new_unique()).message
    encoded = base64.b64encode(bytes(message)).decode()
    assert chain.result("getFeeForMessage", encoded, PROCESSED)["value"] is None


def test_recent_priority_fees_are_the_lowest_that_landed(chain: Chain) -> None:
    key, to = chain.funded(), Pubkey.new_unique()
    chain.advance()
    for price in (700, 300):
        pay = transfer(TransferParams(from_pubkey=key.pubkey(), to_pubkey=to, lamports=SOL))
        chain.run([set_compute_unit_price(price), pay], key)
    slot = chain.ledger.slot
    chain.advance()
    fees = {item["slot"]: item["prioritizationFee"] for item in chain.result("getRecentPrioritizationFees")}
    assert fees[slot] == 300
    assert fees[slot - 1] == 0
    assert max(fees) == slot
    asked = chain.result("getRecentPrioritizationFees", [str(Pubkey.new_unique())])
    assert {item["slot"]: item["prioritizationFee"] for item in asked} == fees


def test_an_airdrop_is_a_transaction_like_any_other(chain: Chain) -> None:
    to = Pubkey.new_unique()
    signature = chain.result("requestAirdrop", str(to), 3 * SOL)
    chain.advance(3)
    assert chain.result("getBalance", str(to))["value"] == 3 * SOL
    found = chain.result("getTransaction", signature, "jsonParsed")
    info = found["transaction"]["message"]["instructions"][0]["parsed"]["info"]
    assert info == {"source": str(chain.key.pubkey()), "destination": str(to), "lamports": 3 * SOL}


def test_the_same_airdrop_twice_in_a_slot_is_given_twice(chain: Chain) -> None:
    to = Pubkey.new_unique()
    signatures = {chain.result("requestAirdrop", str(to), SOL) for _ in range(3)}
    assert len(signatures) == 3
    assert chain.balance(to, Commitment.PROCESSED) == 3 * SOL


def test_an_airdrop_beyond_the_faucet_says_so(chain: Chain) -> None:
    error = chain.error("requestAirdrop", str(Pubkey.new_unique()), 2**64 - 1)
    assert error["code"] == -32603
    assert "airdrop request failed" in error["message"]
