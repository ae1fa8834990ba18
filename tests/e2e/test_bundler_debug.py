"""The debug methods, and the rules of the pool as a client meets them: replacement, limits, reputation, time."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from eth_abi.abi import encode
from eth_utils.crypto import keccak

from capstan.userops.models import UserOperation
from tests.support.bundler import GWEI, Accounts, BundlerClient, BundlerError, execute, serving_bundler
from tests.support.devnet import EvmDevnet
from tests.support.gateway import serving
from tests.support.service import run_command

DEAD = "0x" + "de" * 20


@pytest.fixture(scope="module")
def bundler(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet) -> Iterator[BundlerClient]:
    settings = {"bundler.mode": "manual"}
    with serving_bundler(tmp_path_factory.mktemp("debug"), evm_devnet, settings) as (_, client):
        yield client


@pytest.fixture
def accounts(bundler: BundlerClient, evm_devnet: EvmDevnet) -> Accounts:
    bundler.ask("debug_bundler_clearState")
    return Accounts(evm_devnet, "0.7")


def dump(bundler: BundlerClient, accounts: Accounts) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bundler.ask("debug_bundler_dumpMempool", accounts.entry_point)
    return found


def shown(accounts: Accounts, *operations: UserOperation) -> list[dict[str, Any]]:
    return [accounts.params(each)[0] for each in operations]


def test_nothing_is_bundled_before_it_is_asked_for(bundler: BundlerClient, accounts: Accounts) -> None:
    token = bytes.fromhex(accounts.devnet.deployment.tokens[0].address[2:])
    minting = execute(token, keccak(b"mint(address,uint256)")[:4] + encode(["address", "uint256"], [DEAD, 1]))
    first, _ = accounts.new(call_data=minting)
    second, _ = accounts.new(call_data=minting)
    hashes = [accounts.send(bundler, each) for each in (first, second)]
    assert dump(bundler, accounts) == shown(accounts, first, second)
    assert [bundler.status(each) for each in hashes] == ["pending", "pending"]
    found = bundler.ask("eth_getUserOperationByHash", hashes[0])
    assert (found["blockNumber"], found["blockHash"], found["transactionHash"]) == (None, None, None)
    assert bundler.ask("eth_getUserOperationReceipt", hashes[0]) is None
    bundler.ask("debug_bundler_sendBundleNow")
    # It has answered, so the bundle is mined and the pool knows.
    assert [bundler.status(each) for each in hashes] == ["included", "included"]
    assert dump(bundler, accounts) == []
    receipts = [bundler.ask("eth_getUserOperationReceipt", each) for each in hashes]
    assert receipts[0]["receipt"]["transactionHash"] == receipts[1]["receipt"]["transactionHash"]
    # Each has the logs of its own execution, and none of the other's.
    places = [{log["logIndex"] for log in receipt["logs"]} for receipt in receipts]
    assert all(places)
    assert places[0].isdisjoint(places[1])


def test_the_bundle_of_an_empty_pool_is_no_transaction(
    bundler: BundlerClient, accounts: Accounts, evm_devnet: EvmDevnet
) -> None:
    signer = evm_devnet.deployment.bundler_executors[0].address
    before = evm_devnet.call("eth_getTransactionCount", signer, "latest")
    assert bundler.ask("debug_bundler_sendBundleNow") == "ok"
    assert evm_devnet.call("eth_getTransactionCount", signer, "latest") == before
    assert dump(bundler, accounts) == []


@pytest.mark.parametrize(
    ("tip", "fee", "replaces"),
    [(110, 110, True), (111, 200, True), (110, 100, False), (100, 110, False), (109, 109, False), (90, 90, False)],
)
def test_an_operation_is_replaced_by_one_that_pays_a_tenth_more(
    bundler: BundlerClient, accounts: Accounts, tip: int, fee: int, replaces: bool
) -> None:
    old, owner = accounts.new(max_fee_per_gas=10 * GWEI, max_priority_fee_per_gas=GWEI)
    old_hash = accounts.send(bundler, old)
    changes = {"max_fee_per_gas": fee * GWEI // 10, "max_priority_fee_per_gas": tip * GWEI // 100}
    new = accounts.sign(msgspec.structs.replace(old, **changes), owner)
    if replaces:
        accounts.send(bundler, new)
        assert dump(bundler, accounts) == shown(accounts, new)
        status = bundler.ask("capstan_getUserOperationStatus", old_hash)
        assert status["status"] == "failed"
        assert "replaced" in status["reason"]
        return
    with pytest.raises(BundlerError, match="replacement underpriced") as refused:
        accounts.send(bundler, new)
    assert refused.value.code == -32602
    assert dump(bundler, accounts) == shown(accounts, old)


def test_the_same_operation_twice_is_one(bundler: BundlerClient, accounts: Accounts) -> None:
    operation, _ = accounts.new()
    assert accounts.send(bundler, operation) == accounts.send(bundler, operation)
    assert dump(bundler, accounts) == shown(accounts, operation)


def test_a_sender_without_stake_has_four_operations_at_most(bundler: BundlerClient, accounts: Accounts) -> None:
    first, owner = accounts.new()
    accounts.send(bundler, first)
    bundler.ask("debug_bundler_sendBundleNow")
    # Each in a lane of its own, so that all are valid at once.
    sent = [accounts.next(first, owner, nonce=(lane + 1) << 64) for lane in range(5)]
    for operation in sent[:4]:
        accounts.send(bundler, operation)
    with pytest.raises(BundlerError, match="UREP-010") as refused:
        accounts.send(bundler, sent[4])
    assert refused.value.code == -32505
    assert refused.value.data["minimumUnstakeDelay"] == hex(86_400)
    assert dump(bundler, accounts) == shown(accounts, *sent[:4])


def test_a_banned_factory_is_refused_and_its_operations_leave(bundler: BundlerClient, accounts: Accounts) -> None:
    operation, _ = accounts.new()
    sent = accounts.send(bundler, operation)
    reputation = {"address": accounts.factory, "opsSeen": "0x2710", "opsIncluded": 0}
    assert bundler.ask("debug_bundler_setReputation", [reputation], accounts.entry_point) == "ok"
    (found,) = bundler.ask("debug_bundler_dumpReputation", accounts.entry_point)
    assert found == {"address": accounts.factory, "opsSeen": hex(10_000), "opsIncluded": "0x0", "status": 2}
    assert bundler.status(sent) == "failed"
    with pytest.raises(BundlerError, match="GREP-010") as refused:
        accounts.send(bundler, accounts.new()[0])
    assert (refused.value.code, refused.value.data) == (-32504, {"factory": accounts.factory})
    bundler.ask("debug_bundler_clearReputation")
    assert bundler.ask("debug_bundler_dumpReputation", accounts.entry_point) == []
    accounts.send(bundler, accounts.new()[0])
    bundler.ask("debug_bundler_clearMempool")
    assert dump(bundler, accounts) == []


def test_what_is_seen_and_included_is_counted(bundler: BundlerClient, accounts: Accounts) -> None:
    accounts.send(bundler, accounts.new()[0])

    def counts() -> tuple[str, str]:
        (found,) = bundler.ask("debug_bundler_dumpReputation", accounts.entry_point)
        return found["opsSeen"], found["opsIncluded"]

    assert counts() == ("0x1", "0x0")
    bundler.ask("debug_bundler_sendBundleNow")
    assert counts() == ("0x1", "0x1")


def test_the_stake_of_an_entity_is_told(bundler: BundlerClient, accounts: Accounts, evm_devnet: EvmDevnet) -> None:
    paymaster = evm_devnet.deployment.paymasters["0.7"]
    found = bundler.ask("debug_bundler_getStakeStatus", paymaster, accounts.entry_point)
    expected = {"addr": paymaster, "stake": str(10**18), "unstakeDelaySec": "86400"}
    assert found == {"stakeInfo": expected, "isStaked": True}
    nobody = "0x" + secrets.token_hex(20)
    assert bundler.ask("debug_bundler_getStakeStatus", nobody, accounts.entry_point)["isStaked"] is False


def test_operations_can_be_added_together(bundler: BundlerClient, accounts: Accounts) -> None:
    operations = [accounts.new()[0] for _ in range(2)]
    assert bundler.ask("debug_bundler_addUserOps", shown(accounts, *operations), accounts.entry_point) == "ok"
    assert dump(bundler, accounts) == shown(accounts, *operations)


def test_in_automatic_mode_nobody_has_to_ask(bundler: BundlerClient, accounts: Accounts) -> None:
    sent = accounts.send(bundler, accounts.new()[0])
    bundler.ask("debug_bundler_setBundlingMode", "auto")
    try:
        bundler.wait_for(sent)
    finally:
        bundler.ask("debug_bundler_setBundlingMode", "manual")
    with pytest.raises(BundlerError, match="auto"):
        bundler.ask("debug_bundler_setBundlingMode", "sometimes")


def test_unsafe_networks_and_signers_are_shown_and_keys_are_not(
    bundler: BundlerClient, evm_devnet: EvmDevnet, tmp_path: Path
) -> None:
    ready = bundler.http.get(bundler.url.partition("/v1/")[0] + "/readyz").json()
    assert "ethereum/devnet" in ready["checks"]["bundler"]
    signer = evm_devnet.deployment.bundler_executors[0]
    settings = {
        "bundler.signers": [signer.private_key],
        "networks": {
            "ethereum/devnet": {"upstreams": [evm_devnet.url], "entry_points": evm_devnet.deployment.entry_points}
        },
    }
    done = run_command("doctor", "--data-dir", str(tmp_path / "data"), settings=settings)
    assert f"signer ethereum/devnet {signer.address}: has " in done.stdout
    assert signer.private_key[2:] not in done.stdout + done.stderr


def test_without_debug_bundler_the_debug_methods_do_not_exist_and_without_signers_nothing_is_accepted(
    tmp_path: Path, evm_devnet: EvmDevnet
) -> None:
    points = evm_devnet.deployment.entry_points
    settings = {"mode": "development"}
    with serving(tmp_path, [evm_devnet.url], settings=settings, entry_points=points) as gateway:
        client = BundlerClient(f"{gateway.service.base_url}/bundler/ethereum/devnet", gateway.key)
        with pytest.raises(BundlerError, match="does not exist") as missing:
            client.ask("debug_bundler_clearState")
        assert missing.value.code == -32601
        accounts = Accounts(evm_devnet, "0.8")
        with pytest.raises(BundlerError, match=r"bundler\.signers") as refused:
            accounts.send(client, accounts.new()[0])
        assert refused.value.code == -32004
        ready = client.http.get(gateway.service.origin + "/readyz").json()
        assert ready["checks"]["bundler"] == "ok"
