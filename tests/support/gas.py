"""A running service with gas policies and sponsorship on a development chain.

Used by the tests of gas policies. The service is a process, as users have it; the chain is a real one.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from eth_abi.abi import encode
from eth_account import Account
from eth_account.messages import encode_defunct
from eth_account.signers.local import LocalAccount
from eth_typing import Hash32
from eth_utils.crypto import keccak

from capstan.devnet.evm import CHAIN_ID
from capstan.userops.codec import codec_for, encode_handle_ops
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version
from tests.support.devnet import EvmDevnet
from tests.support.gateway import Gateway, serving
from tests.support.service import run_json

_SECONDS = 30.0
_LONGEST_WAIT = 60.0
_BUNDLER = 18


class Gas:
    """The gas paths of a running service, for one key."""

    def __init__(self, gateway: Gateway, devnet: EvmDevnet, directory: Path, key: str | None = None) -> None:
        self.gateway = gateway
        self.devnet = devnet
        self.directory = directory
        self.key = key or gateway.key
        self.client = httpx.Client(
            base_url=gateway.service.base_url, headers={"X-API-Key": self.key}, timeout=_SECONDS, trust_env=False
        )

    def create(self, rules: Any = None, **body: Any) -> httpx.Response:
        """POST /gas/policies, on ethereum unless told otherwise."""
        given = {"name": "test", "chain": "ethereum", "rules": rules or {"max_total_usd": "10000"}, **body}
        return self.client.post("/gas/policies", json=given)

    def policy(self, rules: Any = None, **body: Any) -> dict[str, Any]:
        """A new policy."""
        answer = self.create(rules, **body)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def read(self, policy_id: str) -> httpx.Response:
        """GET /gas/policies/{id}."""
        return self.client.get(f"/gas/policies/{policy_id}")

    def change(self, policy_id: str, **body: Any) -> httpx.Response:
        """PATCH /gas/policies/{id}."""
        return self.client.patch(f"/gas/policies/{policy_id}", json=body)

    def page(self, **query: Any) -> httpx.Response:
        """GET /gas/policies."""
        return self.client.get("/gas/policies", params=query)

    def sponsor(self, policy_id: str, operation: Mapping[str, Any], **body: Any) -> httpx.Response:
        """POST /gas/sponsor, on ethereum unless told otherwise."""
        given = {"chain": "ethereum", "policy_id": policy_id, "user_operation": operation, **body}
        return self.client.post("/gas/sponsor", json=given)

    def sponsored(self, policy_id: str, operation: Mapping[str, Any], **body: Any) -> dict[str, Any]:
        """The same, when it must be granted."""
        answer = self.sponsor(policy_id, operation, **body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def sponsorships(self, policy_id: str) -> list[dict[str, Any]]:
        """The ledger of a policy, the newest first."""
        answer = self.client.get(f"/gas/policies/{policy_id}/sponsorships", params={"limit": 100})
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["sponsorships"]
        return found

    def wait_for(self, policy_id: str, **expected: str) -> dict[str, Any]:
        """The policy's sums of all time, once they are as expected. Blocks come every second."""
        deadline = time.monotonic() + _LONGEST_WAIT
        while True:
            policy: dict[str, Any] = self.read(policy_id).json()
            if all(policy["total"][name] == value for name, value in expected.items()):
                return policy
            assert time.monotonic() < deadline, f"still {policy['total']}"
            threading.Event().wait(0.2)

    def with_key(self, *options: str) -> "Gas":
        """The same service for a new key."""
        made = run_json("keys", "create", *options, "--data-dir", str(self.directory / "data"))
        return Gas(self.gateway, self.devnet, self.directory, made["key"])


@contextlib.contextmanager
def serving_gas(
    directory: Path, devnet: EvmDevnet, settings: Mapping[str, Any] | None = None, **network: Any
) -> Iterator[Gas]:
    """`capstan serve` with the contracts of this chain; `network` are further settings of the network."""
    contracts = {**contracts_of(devnet), **network}
    chosen = {"mode": "development", "gas.signer": devnet.deployment.paymaster_signer.private_key, **(settings or {})}
    with serving(directory, [devnet.url], settings=chosen, **contracts) as gateway:
        yield Gas(gateway, devnet, directory)


def contracts_of(devnet: EvmDevnet) -> dict[str, Any]:
    """The settings of the network that name the contracts of this chain."""
    deployment = devnet.deployment
    return {
        "entry_points": deployment.entry_points,
        "factories": deployment.factories,
        "paymasters": deployment.paymasters,
        "multicall3": deployment.multicall3,
        "native_usd_feed": next(feed.address for feed in deployment.price_feeds if feed.token is None),
    }


class Sender:
    """A wallet without any money, whose owner nobody knew before: a SimpleAccount of one entry point version."""

    def __init__(self, devnet: EvmDevnet, version: Version) -> None:
        self.devnet = devnet
        self.version = version
        self.owner: LocalAccount = Account.create()
        self.factory = devnet.deployment.factories[version]
        self.entry_point = devnet.deployment.entry_points[version]
        self.salt = secrets.randbits(128)
        question = _call_data("getAddress(address,uint256)", self.owner.address, self.salt)
        answer = devnet.call("eth_call", {"to": self.factory, "data": "0x" + question.hex()}, "latest")
        self.address = "0x" + answer[-40:]
        self.deployed = False

    def mint(self, amount: int = 1) -> bytes:
        """The calldata of an operation that mints sample tokens to the wallet."""
        token = self.devnet.deployment.tokens[0].address
        mint = _call_data("mint(address,uint256)", self.address, amount)
        return _call_data("execute(address,uint256,bytes)", token, 0, mint)

    def operation(self, **changes: Any) -> dict[str, Any]:
        """An operation with gas limits, without signature and paymaster; None leaves a field out."""
        fields: dict[str, Any] = {
            "sender": self.address,
            "nonce": "0x0",
            "callData": "0x" + self.mint().hex(),
            "callGasLimit": hex(200_000),
            "verificationGasLimit": hex(500_000),
            "preVerificationGas": hex(70_000),
            "maxFeePerGas": hex(20 * 10**9),
            "maxPriorityFeePerGas": hex(10**9),
        }
        creation = "0x" + _call_data("createAccount(address,uint256)", self.owner.address, self.salt).hex()
        if self.version == "0.6":
            fields["initCode"] = "0x" if self.deployed else self.factory + creation[2:]
        elif not self.deployed:
            fields |= {"factory": self.factory, "factoryData": creation}
        return {name: value for name, value in {**fields, **changes}.items() if value is not None}

    def signed(self, operation: Mapping[str, Any], sponsored: Mapping[str, Any]) -> UserOperation:
        """The operation with the paymaster's data, signed by the owner."""
        names = ["callGasLimit", "verificationGasLimit", "preVerificationGas"]
        if self.version == "0.6":
            names += ["paymasterAndData"]
        else:
            names += ["paymaster", "paymasterData", "paymasterVerificationGasLimit", "paymasterPostOpGasLimit"]
        fields = {**operation, **{name: sponsored[name] for name in names if name in sponsored}}
        codec = codec_for(self.version)
        digest = codec.hash(codec.parse({**fields, "signature": "0x"}), bytes.fromhex(self.entry_point[2:]), CHAIN_ID)
        if self.version in ("0.6", "0.7"):
            signature = self.owner.sign_message(encode_defunct(digest)).signature
        else:
            signature = self.owner.unsafe_sign_hash(Hash32(digest)).signature
        return codec.parse({**fields, "signature": "0x" + bytes(signature).hex()})

    def land(self, operation: UserOperation) -> dict[str, Any]:
        """Send the operation to the entry point from an account of the chain, and return the receipt."""
        bundler = self.devnet.deployment.accounts[_BUNDLER]
        data = encode_handle_ops(self.version, [operation], bytes.fromhex(bundler.address[2:]))
        receipt: dict[str, Any] = self.devnet.send(bundler, self.entry_point, data=data)
        self.deployed = self.deployed or receipt["status"] == "0x1"
        return receipt


def actual_cost(receipt: Mapping[str, Any]) -> int:
    """The actualGasCost of the one operation in a bundle."""
    topic = "0x" + keccak(b"UserOperationEvent(bytes32,address,address,uint256,bool,uint256,uint256)").hex()
    (event,) = [log for log in receipt["logs"] if log["topics"][0] == topic]
    return int(event["data"][2 + 128 : 2 + 192], 16)


def _call_data(signature: str, *values: Any) -> bytes:
    kinds = signature[signature.index("(") + 1 : -1].split(",")
    return keccak(signature.encode())[:4] + encode(kinds, values)
