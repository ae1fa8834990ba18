"""Account state at earlier slots. LiteSVM holds only the newest state; a request for confirmed or finalized state needs
what was there before the newest blocks. This keeps, per slot, the accounts as they were before that slot changed them.

Used by the ledger alone. Memory is bounded by the slots between the newest block and the final one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from solders.account import Account
from solders.pubkey import Pubkey

from capstan.devnet.solana.messages import AccountReader

Preimages = dict[Pubkey, Account | None]


class StateHistory:
    def __init__(self, newest: AccountReader) -> None:
        self._newest = newest
        self._slots: deque[tuple[int, Preimages]] = deque()

    def open(self, slot: int) -> None:
        self._slots.append((slot, {}))

    def keep(self, addresses: Iterable[Pubkey]) -> None:
        """Called before the open slot writes these accounts; only the first call of a slot counts."""
        _, preimages = self._slots[-1]
        for address in addresses:
            if address not in preimages:
                preimages[address] = self._newest(address)

    def forget_through(self, slot: int) -> None:
        """Drops what is needed only to look back past `slot`."""
        while self._slots and self._slots[0][0] <= slot:
            self._slots.popleft()

    def account_at(self, address: Pubkey, slot: int) -> Account | None:
        for later, preimages in self._slots:
            if later > slot and address in preimages:
                return preimages[address]
        return self._newest(address)

    def program_accounts_at(
        self, program: Pubkey, slot: int, newest: list[tuple[Pubkey, Account]]
    ) -> dict[Pubkey, Account]:
        """`newest` are the program's accounts now; undoes the slots after `slot`, latest first."""
        accounts = dict(newest)
        for later, preimages in reversed(self._slots):
            if later <= slot:
                break
            for address, account in preimages.items():
                accounts.pop(address, None)
                if account is not None and account.owner == program:
                    accounts[address] = account
        return accounts
