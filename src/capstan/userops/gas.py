"""What an operation costs before the entry point measures anything: its share of the transaction that carries it.

Called by the bundler for estimation and for the check of `preVerificationGas`. Only what follows from the operation's
bytes; the fee that rollups take for data on their parent chain must be asked for and is added elsewhere. Integers only;
every share is rounded up, because an estimate that is too low fails.
"""

import msgspec

from capstan.userops.codec import codec_for, encode_handle_ops
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version

# executeUserOp(PackedUserOperation,bytes32): the entry point then passes the whole operation to the account.
EXECUTE_USER_OP_SELECTOR = bytes.fromhex("8dd7712f")

_WORD = 32
# A beneficiary without zero bytes, which costs most.
_SOME_ADDRESS = b"\xff" * 20


class GasSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of a chain. The defaults are Ethereum's."""

    # EIP-2028.
    zero_byte: int = 4
    nonzero_byte: int = 16
    # EIP-7623: a transaction that is mostly data pays at least so much for each token; a zero byte is one token, any
    # other is four. 0 where the chain has no such floor.
    floor_per_token: int = 10
    transaction: int = 21_000
    # EIP-7702: what a tuple costs the transaction that carries it.
    authorization: int = 25_000


class Overheads(msgspec.Struct, frozen=True, kw_only=True):
    """What handleOps spends and does not measure. Found by running bundles of one to four operations on the contracts.

    `test_the_cost_before_verification_is_covered_and_not_wasted` measures again. It differs between the versions.
    """

    # For each bundle beyond the 21,000 of its transaction: reentrancy guard, beneficiary, events.
    bundle: int
    operation: int
    # Copying and hashing, for each word of the encoded operation, in tenths of gas.
    word_tenths: int = 100
    # For accounts whose call is executeUserOp, once and for each word, the latter in tenths. The reference bundler's.
    execute: int = 1_610
    execute_word_tenths: int = 82
    # Operations that are expected to share a bundle. One is the safe assumption.
    bundle_size: int = 1


class PreVerification(msgspec.Struct, frozen=True):
    """The parts of `preVerificationGas` that follow from the operation alone."""

    calldata: int
    overhead: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.calldata + self.overhead


MAINNET = GasSchedule()
OVERHEADS: dict[Version, Overheads] = {
    "0.6": Overheads(bundle=11_900, operation=8_400),
    "0.7": Overheads(bundle=11_900, operation=8_000),
    # From 0.8 on the reentrancy guard is in transient storage.
    "0.8": Overheads(bundle=10_000, operation=7_700),
    "0.9": Overheads(bundle=10_000, operation=7_700),
}


def calldata_tokens(data: bytes) -> int:
    """The tokens of EIP-7623: one for a zero byte, four for any other."""
    zeros = data.count(0)
    return zeros + 4 * (len(data) - zeros)


def calldata_gas(data: bytes, schedule: GasSchedule = MAINNET) -> int:
    """What the bytes cost as calldata of a transaction."""
    zeros = data.count(0)
    return zeros * schedule.zero_byte + (len(data) - zeros) * schedule.nonzero_byte


def pre_verification_gas(
    version: Version,
    operation: UserOperation,
    schedule: GasSchedule = MAINNET,
    overheads: Overheads | None = None,
) -> PreVerification:
    """The least `preVerificationGas` with which a bundle of `bundle_size` such operations does not lose."""
    overheads = overheads or OVERHEADS[version]
    encoded = codec_for(version).encode(operation)
    words = -(-len(encoded) // _WORD)
    shared = -(-(schedule.transaction + overheads.bundle) // overheads.bundle_size)
    overhead = shared + overheads.operation + _tenths(overheads.word_tenths * words)
    if operation.call_data[:4] == EXECUTE_USER_OP_SELECTOR:
        overhead += overheads.execute + _tenths(overheads.execute_word_tenths * words)
    if operation.authorization is not None:
        overhead += schedule.authorization
    return PreVerification(calldata_gas(encoded, schedule), overhead)


def least_pre_verification_gas(
    version: Version,
    operation: UserOperation,
    *,
    executed: int = 0,
    schedule: GasSchedule = MAINNET,
    overheads: Overheads | None = None,
) -> int:
    """The least `preVerificationGas` also where data has a floor (EIP-7623): it must reach what the floor takes beyond
    `executed`, the gas that the entry point is sure to measure."""
    standard = pre_verification_gas(version, operation, schedule, overheads).total
    calldata = encode_handle_ops(version, [operation], _SOME_ADDRESS)
    floor = schedule.transaction + calldata_tokens(calldata) * schedule.floor_per_token
    return max(standard, floor - executed)


def floor_gas(version: Version, operation: UserOperation, schedule: GasSchedule = MAINNET) -> int:
    """What the operation's data costs at least, however little it executes (EIP-7623)."""
    return calldata_tokens(codec_for(version).encode(operation)) * schedule.floor_per_token


def _tenths(amount: int) -> int:
    return -(-amount // 10)
