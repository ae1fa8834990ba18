"""The state on which a job runs: what the service knew, and a note of everything else that the run asked for.

Made by the machine for each job. It fills the state object of the executable specification, which is a pile of plain
dictionaries: these here look like them, and write down who asks for something that was not given.
"""

from collections.abc import Mapping
from typing import Any

from capstan.bundler.validation.evm.messages import AccountState, Missing


class Notes:
    """Which state was asked for and is not known."""

    def __init__(self) -> None:
        self.accounts: set[bytes] = set()
        self.slots: dict[bytes, set[bytes]] = {}

    def missing(self) -> Missing:
        """In the form of a report. Slots of unknown accounts are asked for together with them."""
        return Missing(
            sorted(bytes(each) for each in self.accounts),
            {bytes(address): sorted(bytes(slot) for slot in slots) for address, slots in self.slots.items()},
        )


class Accounts(dict[Any, Any]):
    """The accounts of the state. Asking for one that is not known is noted."""

    def __init__(self, content: Mapping[Any, Any], known: frozenset[bytes], notes: Notes) -> None:
        super().__init__(content)
        self._known = known
        self._notes = notes

    def get(self, key: Any, default: Any = None) -> Any:
        found = dict.get(self, key)
        if found is None:
            if key not in self._known:
                self._notes.accounts.add(key)
            return default
        return found

    def __copy__(self) -> "Accounts":
        return Accounts(self, self._known, self._notes)


class Storage(dict[Any, Any]):
    """The storage of one account. Asking for a slot that is not known is noted."""

    def __init__(self, address: bytes, content: Mapping[Any, Any], known: set[bytes], notes: Notes) -> None:
        super().__init__(content)
        self._address = address
        # Slots that were given, those that are zero included: they are not among the content.
        self._known = known
        self._notes = notes

    def get(self, key: Any, default: Any = None) -> Any:
        found = dict.get(self, key)
        if found is None:
            if key not in self._known:
                self._notes.slots.setdefault(self._address, set()).add(key)
            return default
        return found

    def __eq__(self, other: object) -> bool:
        # The specification throws away storage that equals {}; with it would go the knowledge of what is not known.
        return self is other

    __hash__ = None

    def __copy__(self) -> "Storage":
        return Storage(self._address, self, self._known, self._notes)


def fill(state: Any, modules: Any, accounts: Mapping[bytes, AccountState], codes: Mapping[bytes, bytes]) -> Notes:
    """Put the accounts of a job into an empty state of the specification."""
    notes = Notes()
    content: dict[Any, Any] = {}
    for raw, given in accounts.items():
        address = modules.Address(raw)
        code = codes[given.code_hash]
        if not (given.nonce or any(given.balance) or code):
            continue
        content[address] = modules.Account(
            nonce=modules.Uint(given.nonce), balance=modules.U256.from_be_bytes(given.balance), code=code
        )
        # An account without code and nonce has no storage, and can be created here (EIP-7610).
        if given.nonce or code:
            slots = {
                modules.Bytes32(slot): modules.U256.from_be_bytes(value)
                for slot, value in given.storage.items()
                if any(value)
            }
            storage = modules.Trie(secured=True, default=modules.U256(0))
            storage._data = Storage(raw, slots, set(given.storage), notes)
            state._storage_tries[address] = storage
    state._main_trie._data = Accounts(content, frozenset(accounts), notes)
    return notes
