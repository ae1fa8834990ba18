"""Operations sent to the bundler land on the chain, and it tells what became of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from eth_abi.abi import encode
from eth_account import Account
from eth_utils.crypto import keccak

from capstan.devnet.artifacts import load_package_contract
from capstan.devnet.evm import CHAIN_ID
from capstan.devnet.install import NodeProject
from capstan.devnet.models import DevAccount
from capstan.userops.codec import encode_handle_ops
from capstan.userops.models import Authorization, UserOperation
from capstan.userops.versions import Version
from tests.support.bundler import Accounts, BundlerClient, BundlerError, execute, new_owner, serving_bundler
from tests.support.devnet import EvmDevnet, wait_until
from tests.support.service import run_json

_CARRIER = 13

VERSIONS: tuple[Version, ...] = ("0.6", "0.7", "0.8")
every_version = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundler")


@pytest.fixture(scope="module")
def bundler(home: Path, evm_devnet: EvmDevnet) -> Iterator[BundlerClient]:
    """With full validation, as it is by default."""
    with serving_bundler(home, evm_devnet, unsafe=False) as (_, client):
        yield client


def test_operations_with_consecutive_nonces_land_in_order(bundler: BundlerClient, evm_devnet: EvmDevnet) -> None:
    accounts = Accounts(evm_devnet, "0.7")
    first, owner = accounts.new()
    bundler.wait_for(accounts.send(bundler, first))
    operations = [accounts.next(first, owner, nonce=nonce) for nonce in (1, 2, 3)]
    # All in one batch, which is worked on at once.
    batch = [
        {"jsonrpc": "2.0", "id": place, "method": "eth_sendUserOperation", "params": accounts.params(each)}
        for place, each in enumerate(operations)
    ]
    replies = {reply["id"]: reply for reply in bundler.post(batch).json()}
    assert [replies[place].get("result") for place in range(3)] == [accounts.text_hash(each) for each in operations]
    for each in operations:
        bundler.wait_for(accounts.text_hash(each))
    places = [bundler.ask("eth_getUserOperationByHash", accounts.text_hash(each)) for each in operations]
    numbers = [int(place["blockNumber"], 16) for place in places]
    assert numbers == sorted(numbers)
    with pytest.raises(BundlerError, match="AA25"):
        accounts.send(bundler, accounts.next(first, owner, nonce=5))


def test_it_tells_its_chain_and_entry_points(bundler: BundlerClient, evm_devnet: EvmDevnet) -> None:
    assert bundler.ask("eth_chainId") == hex(31337)
    entry_points = evm_devnet.deployment.entry_points
    assert bundler.ask("eth_supportedEntryPoints") == [entry_points[version] for version in reversed(VERSIONS)]


@every_version
def test_an_operation_creates_its_account(bundler: BundlerClient, evm_devnet: EvmDevnet, version: Version) -> None:
    accounts = Accounts(evm_devnet, version)
    operation, _ = accounts.new()
    given, entry_point = accounts.params(operation)
    operation_hash = accounts.send(bundler, operation)
    assert operation_hash == accounts.text_hash(operation)
    bundler.wait_for(operation_hash)
    assert evm_devnet.call("eth_getCode", given["sender"], "latest") != "0x"
    found = bundler.ask("eth_getUserOperationByHash", operation_hash)
    receipt = bundler.ask("eth_getUserOperationReceipt", operation_hash)
    assert (found["userOperation"], found["entryPoint"]) == (given, entry_point)
    assert receipt["success"] is True
    assert "reason" not in receipt
    assert (receipt["userOpHash"], receipt["sender"], receipt["nonce"]) == (operation_hash, given["sender"], "0x0")
    assert found["transactionHash"] == receipt["receipt"]["transactionHash"]
    assert (found["blockHash"], found["blockNumber"]) == (
        receipt["receipt"]["blockHash"],
        receipt["receipt"]["blockNumber"],
    )
    assert int(receipt["actualGasCost"], 16) > 0
    # What the operations paid went to the signer that sent the bundle, and covers what it spent.
    spent = int(receipt["receipt"]["gasUsed"], 16) * int(receipt["receipt"]["effectiveGasPrice"], 16)
    assert int(receipt["actualGasCost"], 16) >= spent


@every_version
def test_an_operation_sent_with_the_estimate_lands(
    bundler: BundlerClient, evm_devnet: EvmDevnet, version: Version
) -> None:
    accounts = Accounts(evm_devnet, version)
    operation, owner = accounts.new()
    limits = bundler.ask("eth_estimateUserOperationGas", *accounts.params(operation))
    fees = bundler.ask("capstan_getUserOperationGasPrice")
    assert list(fees) == ["slow", "standard", "fast"]
    estimated = accounts.sign(
        msgspec.structs.replace(
            operation,
            pre_verification_gas=int(limits["preVerificationGas"], 16),
            verification_gas_limit=int(limits["verificationGasLimit"], 16),
            call_gas_limit=int(limits["callGasLimit"], 16),
            max_fee_per_gas=int(fees["fast"]["maxFeePerGas"], 16),
            max_priority_fee_per_gas=int(fees["fast"]["maxPriorityFeePerGas"], 16),
        ),
        owner,
    )
    operation_hash = accounts.send(bundler, estimated)
    bundler.wait_for(operation_hash)
    assert bundler.ask("eth_getUserOperationReceipt", operation_hash)["success"] is True


@every_version
def test_a_call_that_reverts_is_included_and_its_reason_told(
    bundler: BundlerClient, evm_devnet: EvmDevnet, version: Version
) -> None:
    accounts = Accounts(evm_devnet, version)
    token = bytes.fromhex(evm_devnet.deployment.tokens[0].address[2:])
    transfer = keccak(b"transfer(address,uint256)")[:4] + encode(["address", "uint256"], ["0x" + "11" * 20, 10**30])
    operation, _ = accounts.new(call_data=execute(token, transfer))
    operation_hash = accounts.send(bundler, operation)
    bundler.wait_for(operation_hash)
    receipt = bundler.ask("eth_getUserOperationReceipt", operation_hash)
    assert receipt["success"] is False
    assert receipt["reason"] not in ("", "0x")
    status = bundler.ask("capstan_getUserOperationStatus", operation_hash)
    assert (status["status"], status["reason"]) == ("included", receipt["reason"])
    assert status["transactionHash"] == receipt["receipt"]["transactionHash"]


def test_an_operation_that_somebody_else_bundled_is_found_too(bundler: BundlerClient, evm_devnet: EvmDevnet) -> None:
    accounts = Accounts(evm_devnet, "0.7")
    operation, _ = accounts.new()
    carrier = evm_devnet.deployment.accounts[_CARRIER]
    data = encode_handle_ops("0.7", [operation], bytes.fromhex(carrier.address[2:]))
    receipt = evm_devnet.send(carrier, accounts.entry_point, data=data)
    assert receipt["status"] == "0x1"
    operation_hash = accounts.text_hash(operation)
    wait_until(
        lambda: bundler.ask("eth_getUserOperationReceipt", operation_hash) is not None, 30, "the receipt to be found"
    )
    found = bundler.ask("eth_getUserOperationByHash", operation_hash)
    assert found["transactionHash"] == receipt["transactionHash"]
    assert found["userOperation"] == accounts.params(operation)[0]
    assert bundler.status(operation_hash) == "not_found"


def test_what_is_unknown_is_null(bundler: BundlerClient) -> None:
    unknown = "0x" + "42" * 32
    assert bundler.ask("eth_getUserOperationByHash", unknown) is None
    assert bundler.ask("eth_getUserOperationReceipt", unknown) is None
    assert bundler.status(unknown) == "not_found"


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "a bad signature": ({}, -32507, "AA24"),
    "no money": ({"funds": 0}, -32500, "AA21"),
    "a used nonce": ({"nonce": 7}, -32500, "AA25"),
    "too little preVerificationGas": ({"pre_verification_gas": 21_000}, -32602, "preVerificationGas"),
    "a tip above the fee": ({"max_priority_fee_per_gas": 10**12}, -32602, "maxPriorityFeePerGas"),
    "too much gas": ({"call_gas_limit": 10**8}, -32602, "gas"),
}


@every_version
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_bundled_is_refused_with_the_code_and_the_reason(
    bundler: BundlerClient, evm_devnet: EvmDevnet, version: Version, case: str
) -> None:
    changes, code, words = REFUSED[case]
    accounts = Accounts(evm_devnet, version)
    operation, _ = accounts.new(**changes)
    if case == "a bad signature":
        operation = accounts.sign(operation, new_owner())
    with pytest.raises(BundlerError) as refused:
        accounts.send(bundler, operation)
    assert refused.value.code == code, refused.value.message
    assert words in refused.value.message
    assert bundler.status(accounts.text_hash(operation)) == "rejected"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ([], "entry point is missing"),
        ([{}, "0x1234"], "the entry point: an address is 0x"),
        ([{}, "0x" + "12" * 20], "is not supported on ethereum/devnet; supported: 0x"),
        ([{"sender": "0x12"}, None], "entry point is missing"),
    ],
)
def test_bad_parameters_are_named(bundler: BundlerClient, params: list[Any], words: str) -> None:
    with pytest.raises(BundlerError) as refused:
        bundler.ask("eth_sendUserOperation", *params)
    assert refused.value.code == -32602
    assert words in refused.value.message


def test_a_field_that_is_missing_is_named(bundler: BundlerClient, evm_devnet: EvmDevnet) -> None:
    accounts = Accounts(evm_devnet, "0.8")
    given, entry_point = accounts.params(accounts.new(funds=0)[0])
    del given["maxFeePerGas"]
    with pytest.raises(BundlerError, match="-32602: maxFeePerGas: is required"):
        bundler.ask("eth_sendUserOperation", given, entry_point)


def test_batches_and_unknown_methods_follow_the_rule_of_the_gateway(bundler: BundlerClient) -> None:
    calls = [
        {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []},
        {"jsonrpc": "2.0", "id": "two", "method": "eth_blockNumber", "params": []},
        {"jsonrpc": "2.0", "method": "eth_chainId", "params": []},
    ]
    answer = bundler.post(calls)
    assert answer.status_code == 200
    first, second = answer.json()
    assert first == {"jsonrpc": "2.0", "id": 1, "result": hex(31337)}
    assert (second["id"], second["error"]["code"]) == ("two", -32601)
    assert bundler.post(calls[2:]).status_code == 204
    assert bundler.post(b"{").status_code == 400


def test_sending_needs_its_scope_and_reading_one_of_two(bundler: BundlerClient, home: Path) -> None:
    data = str(home / "data")
    reader = run_json("keys", "create", "--scope", "rpc:read", "--data-dir", data)["key"]
    client = BundlerClient(bundler.url, reader)
    assert client.ask("eth_chainId") == hex(31337)
    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_sendUserOperation", "params": []}
    refused = client.post(call)
    assert refused.status_code == 403
    assert "bundler:send" in refused.json()["error"]["message"]
    assert client.post([call]).json()[0]["error"]["code"] == -32003
    other = run_json("keys", "create", "--scope", "data:read", "--data-dir", data)["key"]
    assert BundlerClient(bundler.url, other).post({**call, "method": "eth_chainId"}).status_code == 403


@pytest.mark.parametrize("marked", [True, False])
def test_an_account_of_its_own_key_sends_an_operation_with_its_tuple(
    bundler: BundlerClient, evm_devnet: EvmDevnet, node_project: NodeProject, marked: bool
) -> None:
    """EIP-7702: the bundle is a transaction of type 4, and the account delegates from then on."""
    accounts = Accounts(evm_devnet, "0.8")
    delegate = deploy_7702_account(evm_devnet, node_project)
    owner = Account.create()
    evm_devnet.call("hardhat_setBalance", owner.address, hex(10**18))
    signed = owner.sign_authorization({"chainId": CHAIN_ID, "address": delegate, "nonce": 0})
    operation = UserOperation(
        sender=bytes.fromhex(owner.address[2:]),
        nonce=0,
        factory=bytes.fromhex("7702") if marked else None,
        call_gas_limit=100_000,
        verification_gas_limit=300_000,
        pre_verification_gas=100_000,
        max_fee_per_gas=20 * 10**9,
        max_priority_fee_per_gas=10**9,
        authorization=Authorization(CHAIN_ID, bytes.fromhex(delegate[2:]), 0, signed.y_parity, signed.r, signed.s),
    )
    operation = accounts.sign(operation, DevAccount(owner.address, "0x" + bytes(owner.key).hex()))
    sent = accounts.send(bundler, operation)
    bundler.wait_for(sent)
    assert bundler.ask("eth_getUserOperationReceipt", sent)["receipt"]["type"] == "0x4"
    assert evm_devnet.call("eth_getCode", owner.address, "latest") == "0xef0100" + delegate[2:].lower()
    assert bundler.ask("eth_getUserOperationByHash", sent)["userOperation"] == accounts.params(operation)[0]


def deploy_7702_account(devnet: EvmDevnet, project: NodeProject) -> str:
    """The sample account of entry point 0.8 for accounts of their own key."""
    code = load_package_contract(project, "aa08", "Simple7702Account").init_code()
    receipt = devnet.send(devnet.deployment.accounts[_CARRIER], None, data=code)
    return str(receipt["contractAddress"])
