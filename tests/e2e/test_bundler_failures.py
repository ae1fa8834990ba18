"""An operation that passes validation and then fails costs the signer nothing, or at most the bundle that found it.

The service only simulates, so that everything is found where bundles are made. Accounts and paymasters are a few bytes
of code, put where nothing was; to make an operation fail, that code or its money is taken away. Bundles are made on
command.
"""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from capstan.userops.codec import encode_handle_ops
from capstan.userops.models import UserOperation
from capstan.userops.simulation import deposit_override
from tests.support.bundler import ETHER, Accounts, BundlerClient, serving_bundler
from tests.support.bytecode import assemble
from tests.support.devnet import EvmDevnet

_CARRIER = 12
_SIGNER = 0
# What an account returns when all is well, when its signature is wrong, and when its time was over long ago.
ACCEPT = assemble("32 0 RETURN")
SIGNATURE_FAILED = assemble("1 0 MSTORE 32 0 RETURN")
EXPIRED = assemble(f"{1 << 160} 0 MSTORE 32 0 RETURN")
REVERT = assemble("0 0 REVERT")
# The same for a paymaster, which returns its context first: here always an empty one.
SPONSOR = assemble("64 0 MSTORE 96 0 RETURN")
SPONSOR_SIGNATURE_FAILED = assemble("64 0 MSTORE 1 32 MSTORE 96 0 RETURN")
SPONSOR_EXPIRED = assemble(f"64 0 MSTORE {1 << 160} 32 MSTORE 96 0 RETURN")
# Accepts only where gas has no price, as in a simulation.
ACCEPT_FOR_NOTHING = assemble("GASPRICE 8 JUMPI 32 PUSH0 RETURN JUMPDEST PUSH0 PUSH0 REVERT")


class Scene:
    """One service in manual mode, and accounts and paymasters made for each test."""

    def __init__(self, devnet: EvmDevnet, bundler: BundlerClient) -> None:
        self.devnet = devnet
        self.bundler = bundler
        self.accounts = Accounts(devnet, "0.7")
        self.signer = devnet.deployment.bundler_executors[_SIGNER].address

    def contract(self, code: bytes, deposit: int = ETHER) -> bytes:
        """A contract at a new address, with a deposit at the entry point."""
        address = secrets.token_bytes(20)
        self.put(address, code)
        self.deposit(address, deposit)
        return address

    def put(self, address: bytes, code: bytes) -> None:
        """Give an address this code."""
        self.devnet.call("hardhat_setCode", "0x" + address.hex(), "0x" + code.hex())

    def deposit(self, address: bytes, amount: int) -> None:
        """Set the deposit of an address at the entry point, which has the money for it."""
        slot, _ = deposit_override("0.7", address)
        entry_point = self.accounts.entry_point
        self.devnet.call("hardhat_setStorageAt", entry_point, slot, "0x" + amount.to_bytes(32, "big").hex())
        balance = int(self.devnet.call("eth_getBalance", entry_point, "latest"), 16)
        if balance < 1000 * ETHER:
            self.devnet.call("hardhat_setBalance", entry_point, hex(1000 * ETHER))

    def operation(self, sender: bytes, **changes: Any) -> UserOperation:
        """An operation of one of these accounts, which look at no signature."""
        fields: dict[str, Any] = {
            "sender": sender,
            "nonce": 0,
            "call_gas_limit": 50_000,
            "verification_gas_limit": 100_000,
            "pre_verification_gas": 60_000,
            "max_fee_per_gas": 20 * 10**9,
            "max_priority_fee_per_gas": 2 * 10**9,
        }
        if "paymaster" in changes:
            fields |= {"paymaster_verification_gas_limit": 50_000, "paymaster_post_op_gas_limit": 10_000}
        return UserOperation(**{**fields, **changes})

    def send(self, operation: UserOperation) -> str:
        """Send it to the bundler."""
        return self.accounts.send(self.bundler, operation)

    def bundle(self) -> None:
        """Make a bundle now."""
        self.bundler.ask("debug_bundler_sendBundleNow")

    def status(self, operation_hash: str) -> tuple[str, str | None]:
        """Its status and the reason."""
        found = self.bundler.ask("capstan_getUserOperationStatus", operation_hash)
        return found["status"], found["reason"]

    def spent(self) -> tuple[str, str]:
        """What tells whether the signer sent anything: its nonce and its balance."""
        return (
            self.devnet.call("eth_getTransactionCount", self.signer, "latest"),
            self.devnet.call("eth_getBalance", self.signer, "latest"),
        )

    def reputation(self, address: bytes) -> tuple[int, int]:
        """How often the entity was seen, and its standing: 0 is ok, 2 is banned."""
        for each in self.bundler.ask("debug_bundler_dumpReputation", self.accounts.entry_point):
            if each["address"].lower() == "0x" + address.hex():
                return int(each["opsSeen"], 16), each["status"]
        return 0, 0


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet) -> Iterator[Scene]:
    settings = {"bundler.mode": "manual"}
    with serving_bundler(tmp_path_factory.mktemp("failures"), evm_devnet, settings) as (_, bundler):
        yield Scene(evm_devnet, bundler)


@pytest.fixture(autouse=True)
def _empty_pool(scene: Scene) -> None:
    scene.bundler.ask("debug_bundler_clearState")


# What happens to the account between validation and bundle, and what the entry point then says.
ACCOUNT_FAILURES = {"reverts": (REVERT, "AA23"), "signature": (SIGNATURE_FAILED, "AA24"), "expired": (EXPIRED, "AA22")}
PAYMASTER_FAILURES = {
    "reverts": (REVERT, "AA33"),
    "signature": (SPONSOR_SIGNATURE_FAILED, "AA34"),
    "expired": (SPONSOR_EXPIRED, "AA32"),
    # The entry point calls what is not there, which reverts without a word.
    "gone": (b"", "the entry point reverts"),
}


@pytest.mark.parametrize("case", ACCOUNT_FAILURES)
def test_an_account_that_fails_before_the_bundle_costs_nothing(scene: Scene, case: str) -> None:
    code, words = ACCOUNT_FAILURES[case]
    account, paymaster = scene.contract(ACCEPT), scene.contract(SPONSOR)
    sent = scene.send(scene.operation(account, paymaster=paymaster))
    assert scene.reputation(paymaster) == (1, 0)
    before = scene.spent()
    scene.put(account, code)
    scene.bundle()
    status, reason = scene.status(sent)
    assert (status, (reason or "")[:4]) == ("failed", words)
    assert scene.spent() == before
    # EREP-015: the paymaster is not held back for what the account did.
    assert scene.reputation(paymaster) == (0, 0)


@pytest.mark.parametrize("case", PAYMASTER_FAILURES)
def test_a_paymaster_that_fails_before_the_bundle_costs_nothing(scene: Scene, case: str) -> None:
    code, words = PAYMASTER_FAILURES[case]
    account, paymaster = scene.contract(ACCEPT), scene.contract(SPONSOR)
    sent = scene.send(scene.operation(account, paymaster=paymaster))
    before = scene.spent()
    scene.put(paymaster, code)
    scene.bundle()
    status, reason = scene.status(sent)
    assert status == "failed"
    assert (reason or "").startswith(words)
    assert scene.spent() == before
    # It keeps being counted as seen, without being included.
    assert scene.reputation(paymaster) == (1, 0)


def test_a_deposit_that_is_gone_costs_nothing(scene: Scene) -> None:
    account, paymaster = scene.contract(ACCEPT), scene.contract(SPONSOR)
    sent = scene.send(scene.operation(account, paymaster=paymaster))
    before = scene.spent()
    scene.deposit(paymaster, 0)
    scene.bundle()
    assert scene.status(sent) == ("failed", "AA31 paymaster deposit too low")
    assert scene.spent() == before
    assert scene.reputation(paymaster) == (1, 0)


def test_an_account_without_money_costs_nothing(scene: Scene) -> None:
    account = scene.contract(ACCEPT)
    sent = scene.send(scene.operation(account))
    before = scene.spent()
    scene.deposit(account, 0)
    scene.bundle()
    assert scene.status(sent) == ("failed", "AA21 didn't pay prefund")
    assert scene.spent() == before


def test_an_account_that_is_gone_costs_nothing(scene: Scene) -> None:
    account = scene.contract(ACCEPT)
    sent = scene.send(scene.operation(account))
    before = scene.spent()
    scene.put(account, b"")
    scene.bundle()
    status, reason = scene.status(sent)
    assert status == "failed"
    assert (reason or "").startswith("the entry point reverts")
    assert scene.spent() == before


def test_an_account_that_was_created_meanwhile_costs_nothing(scene: Scene) -> None:
    operation, _ = scene.accounts.new()
    sent = scene.send(operation)
    before = scene.spent()
    scene.put(operation.sender, ACCEPT)
    scene.bundle()
    assert scene.status(sent) == ("failed", "AA10 sender already constructed")
    assert scene.spent() == before


def test_a_nonce_that_somebody_else_used_costs_nothing(scene: Scene) -> None:
    account = scene.contract(ACCEPT)
    sent = scene.send(scene.operation(account))
    before = scene.spent()
    carrier = scene.devnet.deployment.accounts[_CARRIER]
    other = scene.operation(account, call_data=b"\x01")
    data = encode_handle_ops("0.7", [other], bytes.fromhex(carrier.address[2:]))
    assert scene.devnet.send(carrier, scene.accounts.entry_point, data=data)["status"] == "0x1"
    scene.bundle()
    assert scene.status(sent) == ("failed", "AA25 invalid account nonce")
    assert scene.spent() == before


def test_what_fails_only_in_company_is_dropped_and_its_entity_banned(scene: Scene) -> None:
    """The deposit is enough for each of two operations, and not for both: only the paymaster can have done that."""
    paymaster = scene.contract(SPONSOR)
    first = scene.operation(scene.contract(ACCEPT), paymaster=paymaster, max_priority_fee_per_gas=4 * 10**9)
    second = scene.operation(scene.contract(ACCEPT), paymaster=paymaster)
    bystander = scene.operation(scene.contract(ACCEPT))
    hashes = [scene.send(each) for each in (first, second, bystander)]
    gas = 50_000 + 100_000 + 60_000 + 50_000 + 10_000
    scene.deposit(paymaster, gas * 20 * 10**9 * 3 // 2)
    scene.bundle()
    # Banned while the bundle is made (GREP-040): nothing of this paymaster goes into any bundle (GREP-010).
    assert scene.reputation(paymaster) == (10_000, 2)
    assert scene.status(hashes[1]) == ("failed", "AA31 paymaster deposit too low")
    assert scene.status(hashes[0])[0] == "failed"
    assert scene.status(hashes[2])[0] == "included"


def test_what_only_fails_on_the_chain_costs_one_bundle_and_is_not_tried_again(scene: Scene) -> None:
    account, paymaster = scene.contract(ACCEPT_FOR_NOTHING), scene.contract(SPONSOR)
    sent = scene.send(scene.operation(account, paymaster=paymaster))
    nonce, _ = scene.spent()
    scene.bundle()
    assert int(scene.spent()[0], 16) == int(nonce, 16) + 1
    status, reason = scene.status(sent)
    assert status == "failed"
    assert "on the chain" in (reason or "")
    scene.bundle()
    assert int(scene.spent()[0], 16) == int(nonce, 16) + 1
