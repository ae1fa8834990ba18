"""viem, permissionless.js and web3.py, unchanged, send operations of every version to the bundler of `capstan dev`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from eth_account import Account
from eth_account.messages import encode_defunct
from web3 import Web3
from web3.types import RPCEndpoint

from capstan.core.clock import iso
from capstan.devnet.evm import CHAIN_ID
from capstan.userops.codec import codec_for
from capstan.userops.versions import Version
from tests.clients.inputs import inputs
from tests.clients.test_python import TOKEN_ABI, headers_of
from tests.support.development import Development
from tests.support.entrypoint import DUMMY_SIGNATURE
from tests.support.javascript import Report, RunScript
from tests.support.node import Node
from tests.support.servers import wait_until

VERSIONS: tuple[Version, ...] = ("0.6", "0.7", "0.8")
every_version = pytest.mark.parametrize("version", VERSIONS)
_OWNER = 12
_SECONDS = 60.0


def new_wallet(development: Development, owner: str, version: Version, salt: int) -> dict[str, Any]:
    """A wallet of the API, with money."""
    answer = httpx.post(
        f"{development.base_url}/wallets/create",
        json={"owner": owner, "chain": "ethereum", "salt": str(salt), "entry_point_version": version},
        headers=headers_of(development),
        timeout=_SECONDS,
        trust_env=False,
    )
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    Node(development.document["node_url"]).ask("hardhat_setBalance", made["address"], hex(10**18))
    return made


class Ran:
    """The wallets that were made for the clients, what they reported, and where to ask about it."""

    def __init__(self, development: Development, javascript: RunScript) -> None:
        self.development = development
        self.node = Node(development.document["node_url"])
        self.salt = secrets.randbits(64)
        owner = development.document["accounts"][_OWNER]["address"]
        self.wallets = {version: new_wallet(development, owner, version, self.salt) for version in VERSIONS}
        self.receivers = {version: Account.create().address for version in VERSIONS}
        document = development.document
        given = inputs(development, _OWNER) | {
            "bundler_url": f"{development.base_url}/bundler/ethereum/devnet",
            "accounts": [
                {
                    "version": version,
                    "entryPoint": document["entry_points"][version],
                    "factory": document["factories"][version],
                    "index": str(self.salt),
                    "receiver": self.receivers[version],
                }
                for version in VERSIONS
            ],
        }
        self.given = given
        self.report: Report = javascript("bundler.mjs", given)

    def wallet(self, version: Version) -> dict[str, Any]:
        """The wallet as the API shows it now."""
        url = f"{self.development.base_url}/wallets/{self.wallets[version]['address']}"
        answer = httpx.get(url, headers=headers_of(self.development), timeout=_SECONDS, trust_env=False)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def balance(self, address: str) -> int:
        """What an address has of the sample token."""
        data = "0x70a08231" + address[2:].lower().rjust(64, "0")
        return int(self.node.ask("eth_call", {"to": self.given["token"], "data": data}, "latest"), 16)


@pytest.fixture(scope="module")
def ran(development: Development, javascript: RunScript) -> Ran:
    return Ran(development, javascript)


def test_viem_learns_the_chain_and_its_entry_points(ran: Ran) -> None:
    assert ran.report["chain id"] == CHAIN_ID
    served = ran.development.document["entry_points"]
    assert ran.report["entry points"] == [served[version] for version in reversed(VERSIONS)]


@every_version
def test_viem_estimates_sends_and_sees_the_receipt(ran: Ran, version: Version) -> None:
    report, wallet = ran.report, ran.wallets[version]
    assert report[f"{version} address"] == wallet["address"]
    estimate = report[f"{version} estimate"]
    assert 100_000 < int(estimate["verificationGasLimit"]) < 500_000
    assert 30_000 < int(estimate["callGasLimit"]) < 200_000
    sent = report[f"{version} send"]
    receipt = report[f"{version} receipt"]
    assert (receipt["userOpHash"], receipt["success"]) == (sent, True)
    assert receipt["sender"].lower() == wallet["address"].lower()
    assert int(receipt["actualGasUsed"]) > 0
    assert len(receipt["logs"]) >= 2
    transaction = receipt["receipt"]["transactionHash"]
    assert ran.node.ask("eth_getTransactionReceipt", transaction)["status"] == "0x1"
    operation = report[f"{version} operation"]
    assert operation["transactionHash"] == transaction
    assert operation["userOperation"]["sender"].lower() == wallet["address"].lower()


@every_version
def test_permissionless_sends_a_transaction_from_the_account(ran: Ran, version: Version) -> None:
    transaction = ran.report[f"{version} transaction"]
    assert ran.node.ask("eth_getTransactionReceipt", transaction)["status"] == "0x1"
    assert ran.balance(ran.receivers[version]) == 5 + 7 + 11


@every_version
def test_an_estimate_of_a_call_that_reverts_is_an_error_that_viem_knows(ran: Ran, version: Version) -> None:
    refused = ran.report[f"{version} reverting"]
    assert refused["code"] == -32521
    assert "revert" in refused["text"].lower()


@every_version
def test_the_wallet_is_deployed_by_the_first_operation(ran: Ran, version: Version) -> None:
    transaction = ran.report[f"{version} receipt"]["receipt"]["transactionHash"]
    wait_until(lambda: bool(ran.wallet(version)["status"] == "deployed"), seconds=_SECONDS)
    wallet = ran.wallet(version)
    assert wallet["deploy_tx"] == transaction
    mined = ran.node.ask("eth_getTransactionReceipt", transaction)
    block = ran.node.ask("eth_getBlockByNumber", mined["blockNumber"], False)
    assert wallet["deployed_at"] == iso(datetime.fromtimestamp(int(block["timestamp"], 16), UTC))


@every_version
def test_web3_sends_what_the_wallet_api_tells(development: Development, version: Version) -> None:
    """web3.py has no methods of its own for operations: it passes them on as they are."""
    owner = Account.create()
    bundler = Bundler(development)
    wallet = new_wallet(development, owner.address, version, 0)
    operation = bundler.first_operation(wallet, owner.address)
    estimate = bundler.ask("eth_estimateUserOperationGas", operation, wallet["entry_point"])
    operation |= estimate | bundler.ask("capstan_getUserOperationGasPrice")["fast"]
    codec = codec_for(version)
    hashed = codec.hash(codec.parse(operation), bytes.fromhex(wallet["entry_point"][2:]), CHAIN_ID)
    if version == "0.8":
        signature = Account.unsafe_sign_hash(hashed, owner.key).signature
    else:
        signature = owner.sign_message(encode_defunct(hashed)).signature
    operation["signature"] = "0x" + bytes(signature).hex()
    sent = bundler.ask("eth_sendUserOperation", operation, wallet["entry_point"])
    assert sent == "0x" + hashed.hex()
    wait_until(lambda: bundler.ask("eth_getUserOperationReceipt", sent) is not None, seconds=_SECONDS)
    assert bundler.ask("eth_getUserOperationReceipt", sent)["success"] is True
    assert bundler.token.functions.balanceOf(owner.address).call() == 3


class Bundler:
    """The bundler of a running `capstan dev` as web3.py talks to it."""

    def __init__(self, development: Development) -> None:
        options = {"headers": headers_of(development), "timeout": 30}
        self._bundler = Web3(
            Web3.HTTPProvider(f"{development.base_url}/bundler/ethereum/devnet", request_kwargs=options)
        )
        node = Web3(Web3.HTTPProvider(development.document["node_url"]))
        self.token = node.eth.contract(address=development.document["tokens"][0]["address"], abi=TOKEN_ABI)

    def ask(self, method: str, *params: object) -> Any:
        """One call, which must have a result."""
        answer = self._bundler.provider.make_request(RPCEndpoint(method), list(params))
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def first_operation(self, wallet: Mapping[str, Any], receiver: str) -> dict[str, str]:
        """The first operation of a wallet, which mints a little, without what an estimate tells."""
        mint = bytes.fromhex(self.token.functions.mint(receiver, 3)._encode_transaction_data()[2:])
        account = Web3().eth.contract(
            abi=[
                {
                    "type": "function",
                    "name": "execute",
                    "stateMutability": "nonpayable",
                    "inputs": [
                        {"name": "target", "type": "address"},
                        {"name": "value", "type": "uint256"},
                        {"name": "data", "type": "bytes"},
                    ],
                    "outputs": [],
                }
            ]
        )
        operation = {
            "sender": wallet["address"],
            "nonce": "0x0",
            "callData": account.encode_abi("execute", [self.token.address, 0, mint]),
            "signature": "0x" + DUMMY_SIGNATURE.hex(),
        }
        if wallet["entry_point_version"] == "0.6":
            return operation | {"initCode": wallet["init_code"], "paymasterAndData": "0x"}
        return operation | {"factory": wallet["factory"], "factoryData": wallet["factory_data"]}
