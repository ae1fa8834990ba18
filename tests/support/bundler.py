"""A running service with a bundler on a development chain, and owners whose accounts send operations to it.

Used by the tests of the bundler. The service is a process, as users have it; the chain is a real one.
"""

import contextlib
import json
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
from eth_abi.abi import encode
from eth_account import Account
from eth_account.messages import encode_defunct
from eth_utils.crypto import keccak

from capstan.devnet.evm import CHAIN_ID
from capstan.devnet.models import DevAccount
from capstan.userops.codec import codec_for
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version
from tests.support.devnet import EvmDevnet, wait_until
from tests.support.gateway import Gateway, serving

_SECONDS = 60.0
# The account that pays for everything the tests set up; no test sends from it itself.
_FUNDER = 18
GWEI = 10**9
ETHER = 10**18


class BundlerError(Exception):
    """The bundler answered with a JSON-RPC error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: Any = error.get("data")


class BundlerClient:
    """The bundler's path of a running service."""

    def __init__(self, url: str, key: str) -> None:
        self.http = httpx.Client(headers={"X-API-Key": key}, timeout=_SECONDS, trust_env=False)
        self.url = url

    def post(self, body: object) -> httpx.Response:
        """The whole HTTP answer to a body."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(self.url, content=content, headers={"Content-Type": "application/json"})

    def ask(self, method: str, *params: object) -> Any:
        """The result of one call. Raises `BundlerError`."""
        answer = self.post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        assert answer.status_code == 200, answer.text
        reply = answer.json()
        if "error" in reply:
            raise BundlerError(reply["error"])
        return reply["result"]

    def status(self, operation_hash: str) -> str:
        """What capstan_getUserOperationStatus says."""
        return str(self.ask("capstan_getUserOperationStatus", operation_hash)["status"])

    def wait_for(self, operation_hash: str, status: str = "included", seconds: float = _SECONDS) -> None:
        """Wait until the operation is in this state."""
        wait_until(lambda: self.status(operation_hash) == status, seconds, f"{operation_hash} to be {status}")


class Accounts:
    """Makes and signs operations of new accounts on one entry point."""

    def __init__(self, devnet: EvmDevnet, version: Version) -> None:
        self.devnet = devnet
        self.version = version
        self.entry_point = devnet.deployment.entry_points[version]
        self.factory = devnet.deployment.factories[version]
        self._codec = codec_for(version)

    def new(self, *, funds: int = ETHER, **changes: Any) -> tuple[UserOperation, DevAccount]:
        """The first operation of a new account, signed by a new owner, and that owner."""
        owner = new_owner()
        salt = secrets.randbits(128)
        arguments = encode(["address", "uint256"], [owner.address, salt])
        question = {"to": self.factory, "data": "0x" + (_selector("getAddress(address,uint256)") + arguments).hex()}
        sender = bytes.fromhex(self.devnet.call("eth_call", question, "latest")[2:])[12:]
        if funds:
            self.devnet.call("hardhat_setBalance", "0x" + sender.hex(), hex(funds))
        operation = UserOperation(
            sender=sender,
            nonce=0,
            factory=bytes.fromhex(self.factory[2:]),
            factory_data=_selector("createAccount(address,uint256)") + arguments,
            call_gas_limit=100_000,
            verification_gas_limit=450_000,
            pre_verification_gas=60_000,
            max_fee_per_gas=20 * GWEI,
            max_priority_fee_per_gas=2 * GWEI,
        )
        return self.sign(msgspec.structs.replace(operation, **changes), owner), owner

    def next(self, operation: UserOperation, owner: DevAccount, **changes: Any) -> UserOperation:
        """A further operation of the same account, which is deployed by now."""
        plain = {"factory": None, "factory_data": b"", "nonce": operation.nonce + 1, **changes}
        return self.sign(msgspec.structs.replace(operation, **plain), owner)

    def sign(self, operation: UserOperation, owner: DevAccount) -> UserOperation:
        """The operation with the owner's signature."""
        digest = self.hash(operation)
        if self.version in ("0.6", "0.7"):
            signature = Account.sign_message(encode_defunct(digest), owner.private_key).signature
        else:
            signature = Account.unsafe_sign_hash(digest, owner.private_key).signature
        return msgspec.structs.replace(operation, signature=bytes(signature))

    def hash(self, operation: UserOperation) -> bytes:
        """Its hash."""
        return self._codec.hash(operation, bytes.fromhex(self.entry_point[2:]), CHAIN_ID)

    def text_hash(self, operation: UserOperation) -> str:
        """Its hash as JSON-RPC writes it."""
        return "0x" + self.hash(operation).hex()

    def params(self, operation: UserOperation) -> tuple[dict[str, Any], str]:
        """The parameters of eth_sendUserOperation."""
        return self._codec.render(operation), self.entry_point

    def send(self, bundler: BundlerClient, operation: UserOperation) -> str:
        """Send it; the hash that the bundler tells."""
        return str(bundler.ask("eth_sendUserOperation", *self.params(operation)))

    def nonce(self, sender: bytes, key: int = 0) -> int:
        """The next nonce of an account at the entry point."""
        data = _selector("getNonce(address,uint192)") + encode(["address", "uint192"], ["0x" + sender.hex(), key])
        return int(self.devnet.call("eth_call", {"to": self.entry_point, "data": "0x" + data.hex()}, "latest"), 16)


def execute(target: bytes, data: bytes = b"", value: int = 0) -> bytes:
    """The call data with which a SimpleAccount calls another contract."""
    arguments = encode(["address", "uint256", "bytes"], ["0x" + target.hex(), value, data])
    return _selector("execute(address,uint256,bytes)") + arguments


def new_owner() -> DevAccount:
    """A key that no test used before."""
    account = Account.create()
    return DevAccount(account.address, "0x" + bytes(account.key).hex())


def bundler_settings(devnet: EvmDevnet, *, signers: int = 1, **others: Any) -> dict[str, Any]:
    """The settings of a service whose bundler uses so many of the chain's executors."""
    keys = [account.private_key for account in devnet.deployment.bundler_executors[:signers]]
    chosen = {f"bundler.{name}": value for name, value in others.items()}
    # A machine that stalls must not make an operation too slow to validate.
    return {"mode": "development", "bundler.signers": keys, "bundler.validation_seconds": 60, **chosen}


def network_settings(devnet: EvmDevnet, *, unsafe: bool) -> dict[str, Any]:
    """The settings of the network on which the bundler works."""
    deployment = devnet.deployment
    return {
        "entry_points": deployment.entry_points,
        "factories": deployment.factories,
        "bundler_unsafe": unsafe,
        "debug_bundler": True,
        "block_time_ms": 1000,
    }


@contextlib.contextmanager
def serving_bundler(
    directory: Path, devnet: EvmDevnet, settings: Mapping[str, Any] | None = None, *, unsafe: bool = True
) -> Iterator[tuple[Gateway, BundlerClient]]:
    """`capstan serve` with a bundler on this chain; `unsafe` makes it only simulate, which is faster."""
    chosen = {**bundler_settings(devnet), **(settings or {})}
    with serving(directory, [devnet.url], settings=chosen, **network_settings(devnet, unsafe=unsafe)) as gateway:
        yield gateway, BundlerClient(f"{gateway.service.base_url}/bundler/{gateway.network}", gateway.key)


def _selector(signature: str) -> bytes:
    return keccak(signature.encode())[:4]
