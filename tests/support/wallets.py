"""A running service with smart wallets on a development chain, and owners who deploy them.

Used by the tests of the wallets. The service is a process, as users have it; the chain is a real one.
"""

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from eth_account import Account
from eth_account.messages import encode_defunct

from capstan.devnet.evm import CHAIN_ID
from capstan.devnet.models import DevAccount
from capstan.userops.codec import codec_for, encode_handle_ops
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version
from tests.support.devnet import EvmDevnet
from tests.support.gateway import Gateway, serving
from tests.support.service import run_json

_SECONDS = 30.0
_BUNDLER = 17


class Wallets:
    """The wallet paths of a running service, for one key."""

    def __init__(self, gateway: Gateway, devnet: EvmDevnet, directory: Path, key: str | None = None) -> None:
        self.gateway = gateway
        self.devnet = devnet
        self.directory = directory
        self.key = key or gateway.key
        self._client = httpx.Client(
            base_url=gateway.service.base_url, headers={"X-API-Key": self.key}, timeout=_SECONDS, trust_env=False
        )

    def create(self, **body: Any) -> httpx.Response:
        """POST /wallets/create; the chain is ethereum unless told otherwise."""
        return self._client.post("/wallets/create", json={"chain": "ethereum", **body})

    def created(self, owner: str | None = None, **body: Any) -> dict[str, Any]:
        """A new wallet, of a new owner unless told otherwise."""
        answer = self.create(owner=owner or Account.create().address, **body)
        assert answer.status_code == 201, answer.text
        wallet: dict[str, Any] = answer.json()
        return wallet

    def read(self, address: str, **query: Any) -> httpx.Response:
        """GET /wallets/{address}."""
        return self._client.get(f"/wallets/{address}", params=query)

    def wallet(self, address: str, **query: Any) -> dict[str, Any]:
        """The same, when it must be there."""
        answer = self.read(address, **query)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def page(self, **query: Any) -> httpx.Response:
        """GET /wallets."""
        return self._client.get("/wallets", params=query)

    def post(self, content: bytes | str) -> httpx.Response:
        """POST /wallets/create with any body."""
        return self._client.post("/wallets/create", content=content, headers={"Content-Type": "application/json"})

    def with_key(self, *options: str) -> "Wallets":
        """The same service for a new key."""
        return Wallets(self.gateway, self.devnet, self.directory, self.new_key(*options)["key"])

    def new_key(self, *options: str) -> dict[str, Any]:
        """A new key, of a new account unless the options say otherwise."""
        made: dict[str, Any] = run_json("keys", "create", *options, "--data-dir", str(self.directory / "data"))
        return made

    def new_account(self, *options: str) -> str:
        """A new account on the free plan, with limits of its own."""
        made = run_json("accounts", "create", "tests", *options, "--data-dir", str(self.directory / "data"))
        return str(made["id"])


@contextlib.contextmanager
def serving_wallets(
    directory: Path, devnet: EvmDevnet, settings: Mapping[str, Any] | None = None, **network: Any
) -> Iterator[Wallets]:
    """`capstan serve` with the contracts of this chain; `network` are further settings of the network."""
    deployment = devnet.deployment
    contracts = {"entry_points": deployment.entry_points, "factories": deployment.factories, **network}
    chosen = {"mode": "development", **(settings or {})}
    with serving(directory, [devnet.url], settings=chosen, **contracts) as gateway:
        yield Wallets(gateway, devnet, directory)


def first_operation(devnet: EvmDevnet, wallet: Mapping[str, Any], owner: DevAccount) -> UserOperation:
    """The first operation of a wallet, made of nothing but what the API tells of it, signed by its owner."""
    version: Version = wallet["entry_point_version"]
    fields = {
        "sender": wallet["address"],
        "nonce": hex(wallet.get("nonce", 0)),
        "callData": "0x",
        "callGasLimit": hex(50_000),
        "verificationGasLimit": hex(600_000),
        "preVerificationGas": hex(60_000),
        "maxFeePerGas": hex(20 * 10**9),
        "maxPriorityFeePerGas": hex(10**9),
        "signature": "0x",
    }
    if version == "0.6":
        fields |= {"initCode": wallet["init_code"], "paymasterAndData": "0x"}
    elif wallet["factory_data"] is not None:
        fields |= {"factory": wallet["factory"], "factoryData": wallet["factory_data"]}
    codec = codec_for(version)
    unsigned = codec.parse(fields)
    digest = codec.hash(unsigned, bytes.fromhex(wallet["entry_point"][2:]), CHAIN_ID)
    if version in ("0.6", "0.7"):
        signature = Account.sign_message(encode_defunct(digest), owner.private_key).signature
    else:
        signature = Account.unsafe_sign_hash(digest, owner.private_key).signature
    return codec.parse({**fields, "signature": "0x" + bytes(signature).hex()})


def deploy_by_operation(devnet: EvmDevnet, wallet: Mapping[str, Any], owner: DevAccount) -> dict[str, Any]:
    """Sends the first operation of a wallet through its entry point, and returns the receipt of the bundle."""
    bundler = devnet.deployment.accounts[_BUNDLER]
    devnet.send(bundler, wallet["address"], value=10**17)
    operation = first_operation(devnet, wallet, owner)
    data = encode_handle_ops(wallet["entry_point_version"], [operation], bytes.fromhex(bundler.address[2:]))
    receipt = devnet.send(bundler, wallet["entry_point"], data=data)
    assert receipt["status"] == "0x1", "the bundle was reverted"
    return receipt


def deploy_by_factory(devnet: EvmDevnet, wallet: Mapping[str, Any]) -> dict[str, Any]:
    """Calls the factory without any entry point, as anyone may before 0.8."""
    receipt = devnet.send(devnet.deployment.accounts[_BUNDLER], wallet["factory"], data=wallet["factory_data"])
    assert receipt["status"] == "0x1", "the factory was reverted"
    return receipt


def block_time(devnet: EvmDevnet, receipt: Mapping[str, Any]) -> int:
    """The timestamp of the block of a receipt."""
    return int(devnet.call("eth_getBlockByNumber", receipt["blockNumber"], False)["timestamp"], 16)


def random_salt() -> str:
    """A salt that no test used before."""
    return str(secrets.randbits(128))
