"""What the service and a worker process say to each other.

Each message is one MessagePack value behind its length. The service sends a `Job`, the worker answers with one
`Report`. Plain values.
"""

import msgspec

from capstan.bundler.validation.trace import Trace

LENGTH_BYTES = 4
# Far beyond the code of every contract that a validation may touch. What is larger is a fault.
LARGEST_MESSAGE = 64 * 1024 * 1024


class AccountState(msgspec.Struct, frozen=True):
    """An account at the block of the job. Its code is known to the worker by its hash, or comes along with the job."""

    # In wei, 32 bytes: it may have more than 64 bits.
    balance: bytes
    nonce: int
    code_hash: bytes
    storage: dict[bytes, bytes] = {}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Run one call of the entry point, up to the end of the operation's validation."""

    fork: str
    # Whether the chain has the precompile P256VERIFY although its fork does not (RIP-7212).
    p256: bool = False
    chain_id: int
    block_number: int
    timestamp: int
    caller: bytes
    entry_point: bytes
    data: bytes
    gas: int
    accounts: dict[bytes, AccountState]
    # Code that the worker has not been given before, by hash.
    codes: dict[bytes, bytes] = {}
    # After so many seconds the worker ends itself.
    seconds: float = 10.0


class Missing(msgspec.Struct, frozen=True):
    """State that the run asked for and that was not in the job."""

    accounts: list[bytes] = []
    slots: dict[bytes, list[bytes]] = {}

    def __bool__(self) -> bool:
        return bool(self.accounts or self.slots)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the run found. With something missing, the trace is that of a wrong world and counts for nothing."""

    trace: Trace | None = None
    missing: Missing = Missing()
    # Whether the calls nested too deeply; then there is no trace.
    too_deep: bool = False
    # Whether it was given up because it could not have ended in time.
    too_slow: bool = False
    # Why the job could not be run at all: a fault of ours.
    fault: str = ""
    # How many instructions were executed.
    steps: int = 0
