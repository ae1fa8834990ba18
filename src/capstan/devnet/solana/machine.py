"""The one owner of LiteSVM. It executes and simulates transactions, reads and writes accounts, and sets the sysvars
that move with the slot. The ledger is its only caller.

LiteSVM is synchronous and bound to the thread that made it, so this object is used from the event loop's thread only.
It knows nothing of blocks, blockhash age or duplicates: LiteSVM's own checks for those are switched off, because it
remembers a single blockhash, and the ledger does them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from solders.account import Account
from solders.clock import Clock
from solders.epoch_schedule import EpochSchedule
from solders.hash import Hash
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.sysvar import CLOCK, RECENT_BLOCKHASHES, SLOT_HASHES
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, InnerInstruction, TransactionMetadata

from capstan.devnet.solana.programs import FEATURE, GENESIS_OWNERS, SYSTEM, SYSVAR_OWNER
from capstan.devnet.solana.settings import LAMPORTS_PER_SIGNATURE

SLOT_SYSVARS = (CLOCK, SLOT_HASHES, RECENT_BLOCKHASHES)
"""Accounts that change because a slot begins, not because a transaction ran."""

Result = TypeVar("Result")


class MachineFault(RuntimeError):
    """LiteSVM failed in a way that is no answer to the transaction: a defect, not a transaction error."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What running one transaction gave. `error` is in Solana's JSON form, None on success."""

    included: bool
    error: Any
    logs: list[str]
    units: int
    fee: int
    return_data: tuple[Pubkey, bytes] | None
    inner: list[list[InnerInstruction]]
    accounts: dict[Pubkey, Account]

    @staticmethod
    def refused(error: Any) -> Outcome:
        """A transaction that never ran."""
        return Outcome(included=False, error=error, logs=[], units=0, fee=0, return_data=None, inner=[], accounts={})


class Machine:
    def __init__(self, faucet: Pubkey, faucet_lamports: int) -> None:
        self._vm = LiteSVM().with_blockhash_check(False).with_transaction_history(0)
        # LiteSVM's own airdrop account is a key we cannot sign with. Ours can, so an airdrop is an ordinary
        # transaction that getTransaction can show.
        self._vm.set_account(self._vm.airdrop_pubkey(), Account(0, b"", SYSTEM))
        self._vm.set_account(faucet, Account(faucet_lamports, b"", SYSTEM))

    def total_lamports(self) -> int:
        """The sum over all accounts. Only right at genesis, when the list of owners is complete."""
        return sum(account.lamports for owner in GENESIS_OWNERS for _, account in self._vm.get_program_accounts(owner))

    def feature_set_id(self) -> int:
        """Agave's 32-bit name of a feature set: the start of the hash over the sorted feature addresses."""
        features = sorted(bytes(address) for address, _ in self._vm.get_program_accounts(FEATURE))
        return int.from_bytes(hashlib.sha256(b"".join(features)).digest()[:4], "little")

    def epoch_schedule(self) -> EpochSchedule:
        return self._vm.get_epoch_schedule()

    def rent_exempt_minimum(self, data_length: int) -> int:
        return self._vm.minimum_balance_for_rent_exemption(data_length)

    def account(self, address: Pubkey) -> Account | None:
        account = self._vm.get_account(address)
        return None if account is None or account.lamports == 0 else account

    def program_accounts(self, program: Pubkey) -> list[tuple[Pubkey, Account]]:
        return [(address, account) for address, account in self._vm.get_program_accounts(program) if account.lamports]

    def set_account(self, address: Pubkey, account: Account) -> None:
        self._vm.set_account(address, account)

    def begin_slot(self, clock: Clock, slot_hashes: Sequence[tuple[int, Hash]], recent: Iterable[Hash]) -> None:
        """Sets the sysvars programs see during the slot; both lists are newest first."""
        self._vm.set_clock(clock)
        self._vm.set_slot_hashes(slot_hashes)
        entries = [bytes(blockhash) + LAMPORTS_PER_SIGNATURE.to_bytes(8, "little") for blockhash in recent]
        data = len(entries).to_bytes(8, "little") + b"".join(entries)
        self._vm.set_account(RECENT_BLOCKHASHES, Account(1, data, SYSVAR_OWNER))

    def execute(self, transaction: VersionedTransaction) -> Outcome:
        result = _guarded(lambda: self._vm.send_transaction(transaction))
        if isinstance(result, FailedTransactionMetadata):
            # LiteSVM leaves the signature empty when the transaction could not even be charged for.
            return _outcome(result.meta(), result.meta().signature() != Signature.default(), _error_json(result))
        return _outcome(result, True, None)

    def simulate(self, transaction: VersionedTransaction, *, verify: bool) -> Outcome:
        if not verify:
            self._vm.with_sigverify(False)
        try:
            result = _guarded(lambda: self._vm.simulate_transaction(transaction))
        finally:
            self._vm.with_sigverify(True)
        if isinstance(result, FailedTransactionMetadata):
            return _outcome(result.meta(), False, _error_json(result))
        return _outcome(result.meta(), True, None, dict(result.post_accounts()))


def _outcome(
    meta: TransactionMetadata, included: bool, error: Any, accounts: dict[Pubkey, Account] | None = None
) -> Outcome:
    returned = meta.return_data()
    return Outcome(
        included=included,
        error=error,
        logs=meta.logs(),
        units=meta.compute_units_consumed(),
        fee=meta.fee(),
        return_data=(returned.program_id, bytes(returned.data)) if returned.data else None,
        inner=meta.inner_instructions(),
        accounts=accounts or {},
    )


def _error_json(failure: FailedTransactionMetadata) -> Any:
    return json.loads(failure.to_json())["err"]


def _guarded(call: Callable[[], Result]) -> Result:
    """A panic in LiteSVM arrives as a BaseException, which would take the whole node down with one transaction."""
    try:
        return call()
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise MachineFault(f"LiteSVM could not run the transaction: {error}") from error
