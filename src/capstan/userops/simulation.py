"""Runs an operation in the place of the entry point, inside one `eth_call`: the question, and how its answer reads.

Used by the bundler for validation without a tracer and for estimation. The code of `contracts/EntryPointSimulation.vy`
stands at the address of the entry point for the time of the call, and the entry point's own code beside it; both are
put there by the state override of `eth_call`. It works for every version in the same way, because the entry point
itself judges the operation. Nothing is deployed. Pure: the bytes alone, no I/O.
"""

import json
import secrets
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from capstan.core.creation import create_address
from capstan.core.hexes import keccak256, to_data
from capstan.userops.abi import Reader, Tail, address_word, array, dynamic, members, word
from capstan.userops.codec import codec_for, encode_handle_ops
from capstan.userops.gas import EXECUTE_USER_OP_SELECTOR
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version

# Where the entry point's own code is put; `ORIGINAL` of the contract.
ORIGINAL = keccak256(b"capstan.entry_point.code")[12:]
# Who sends the simulated bundle: an account without code, as entry point 0.9 wants it, that nobody has the key of.
CALLER = keccak256(b"capstan.simulation.caller")[12:]
# The longest calldata the contract takes; of one operation somewhat less, because it is encoded with others.
LONGEST_CALL = 32_768
# handleOps refuses gas values beyond 120 bits (AA94), after the operations before it were validated.
_OVERFLOW = UserOperation(sender=bytes(20), nonce=0, pre_verification_gas=2**255)
_OVERFLOW_CODE = "AA94"
# A deposit that pays for anything.
PLENTY = 2**100
_LIMIT_BYTES = 16
# With this bit in both ends of a time range, entry point 0.9 takes it for one of block numbers.
_BLOCKS_FLAG = 2**47


def _selector(signature: str) -> bytes:
    return keccak256(signature.encode())[:4]


class ValidationData(msgspec.Struct, frozen=True):
    """What an account or a paymaster says of an operation: one word with a signature's fate and a time range."""

    # 0: good. 1: the signature is wrong. Any other is the address of an aggregator.
    authorizer: int
    valid_after: int
    # None is no end.
    valid_until: int | None
    # Entry point 0.9: whether the range is one of block numbers.
    in_blocks: bool = False

    @property
    def aggregator(self) -> bytes | None:
        """The aggregator that is to check the signature."""
        return self.authorizer.to_bytes(20, "big") if self.authorizer > 1 else None

    @staticmethod
    def of(number: int) -> "ValidationData":
        """Read from the word."""
        until, after = number >> 160 & (2**48 - 1), number >> 208
        in_blocks = bool(until & after & _BLOCKS_FLAG)
        if in_blocks:
            until, after = until - _BLOCKS_FLAG, after - _BLOCKS_FLAG
        return ValidationData(number & (2**160 - 1), after, until or None, in_blocks)


class EntryPointCode(msgspec.Struct, frozen=True):
    """An entry point of a network, with the code that `eth_getCode` gives for it."""

    version: Version
    address: bytes
    code: bytes
    chain_id: int


class Call(msgspec.Struct, frozen=True):
    """A call that the entry point makes."""

    target: bytes
    data: bytes


class Search(msgspec.Struct, frozen=True):
    """How far the search for a limit is: `low` is too low, `high` suffices (0: unknown), `used` was used in freedom."""

    low: int = 0
    high: int = 0
    used: int = 0


Status = Literal["done", "unfinished", "validation", "preparation", "execution", "post"]
# In the order of the contract's numbers.
_STATUSES: tuple[Status, ...] = ("done", "unfinished", "validation", "preparation", "execution", "post")


class Searches(msgspec.Struct, frozen=True):
    """The four limits of an operation."""

    verification: Search = Search()
    paymaster_verification: Search = Search()
    call: Search = Search()
    post: Search = Search()


class Found(msgspec.Struct, frozen=True):
    """What a simulation that estimates found: where it ended, the limits so far, and the revert data if one failed."""

    status: Status
    searches: Searches
    reason: bytes


class Inspection(msgspec.Struct, frozen=True):
    """What a simulation that validates found."""

    # What handleOps reverted with; `is_valid` reads it.
    refusal: bytes
    gas_used: int
    # What each call answered; None where it reverted.
    answers: tuple[bytes | None, ...]


@cache
def _code() -> str:
    text = resources.files("capstan.catalogue").joinpath("contracts/EntryPointSimulation.json").read_bytes()
    return str(json.loads(text)["bytecode_runtime"])


def code_overrides(entry_point: EntryPointCode) -> dict[bytes, str]:
    """The code that every simulation puts in place, by address."""
    return {entry_point.address: _code(), ORIGINAL: to_data(entry_point.code)}


def delegation_code(operation: UserOperation) -> str | None:
    """The code that an EIP-7702 tuple gives to its signer, where the operation carries one."""
    if operation.authorization is None:
        return None
    return to_data(b"\xef\x01\x00" + operation.authorization.address)


def deposit_override(version: Version, account: bytes) -> tuple[str, str]:
    """Storage slot and value that give an account a deposit which pays for anything."""
    # `deposits` is the first variable of every entry point. 0.6 packs deposit (112 bits), staked and stake in one word.
    packed = PLENTY | 1 << 112 | 1 << (120 + 64)
    value = packed if version == "0.6" else PLENTY
    return to_data(keccak256(address_word(account) + bytes(32))), to_data(word(value))


def nonce_override(operation: UserOperation) -> tuple[bytes, bytes]:
    """Storage slot and value that make the operation the next one of its lane."""
    # `nonceSequenceNumber` is the second variable of every entry point: by sender, then by key.
    lane = keccak256(address_word(operation.sender) + word(1))
    return keccak256(word(operation.nonce_key) + lane), word(operation.nonce_sequence)


def encode_bundle(version: Version, operations: Sequence[UserOperation]) -> bytes:
    """handleOps of the operations and one that always fails: it reverts with AA94 when all others are valid."""
    return encode_handle_ops(version, [*operations, _OVERFLOW], CALLER)


def is_overflow(reason: str) -> bool:
    """Whether the reason of a failure is the one with which `encode_bundle` ends, so that nothing else was wrong."""
    return reason.startswith(_OVERFLOW_CODE)


def preparations(entry_point: EntryPointCode, operation: UserOperation, missing_funds: int) -> list[Call]:
    """What validation does in the entry point's name: creating the account, its validation, and the paymaster's."""
    codec = codec_for(entry_point.version)
    hashed = codec.hash(operation, entry_point.address, entry_point.chain_id, delegate=bytes(20))
    calls = []
    creator = create_address(entry_point.address, 1)
    if operation.is_delegation:
        if operation.factory_data:
            arguments = members([address_word(operation.sender), dynamic(operation.factory_data)])
            calls.append(Call(creator, _selector("initEip7702Sender(address,bytes)") + arguments))
    elif operation.factory is not None:
        calls.append(Call(creator, _selector("createSender(bytes)") + members([dynamic(operation.init_code)])))
    encoded = Tail(codec.encode(operation))
    validate = _selector(f"validateUserOp({codec.struct},bytes32,uint256)")
    calls.append(Call(operation.sender, validate + members([encoded, hashed, word(missing_funds)])))
    if operation.paymaster is not None:
        sponsor = _selector(f"validatePaymasterUserOp({codec.struct},bytes32,uint256)")
        cost = codec.required_prefund(operation)
        calls.append(Call(operation.paymaster, sponsor + members([encoded, hashed, word(cost)])))
    return calls


def execution(entry_point: EntryPointCode, operation: UserOperation) -> Call:
    """The call of the account that the entry point makes once all is validated; without data it makes none."""
    codec = codec_for(entry_point.version)
    data = operation.call_data
    if codec.release.packed and data[:4] == EXECUTE_USER_OP_SELECTOR:
        hashed = codec.hash(operation, entry_point.address, entry_point.chain_id, delegate=bytes(20))
        whole = members([Tail(codec.encode(operation)), hashed])
        data = _selector(f"executeUserOp({codec.struct},bytes32)") + whole
    return Call(operation.sender, data)


def encode_inspection(bundle: bytes, calls: Sequence[Call]) -> bytes:
    """Calldata of `inspect`."""
    return _selector("inspect(bytes,(address,bytes)[])") + members([dynamic(bundle), array(map(_call, calls))])


def decode_inspection(data: bytes) -> Inspection:
    """What `inspect` returns. Raises `Malformed` when this is something else."""
    reader = Reader(data)
    answers = tuple(each.data(1) if each.flag(0) else None for each in reader.structs(2))
    return Inspection(reader.data(0), reader.number(1), answers)


def deposit_question(account: bytes) -> bytes:
    """Calldata of `getDepositInfo(account)`: deposit, staked, stake, unstakeDelaySec, withdrawTime."""
    return _selector("getDepositInfo(address)") + address_word(account)


class Estimation(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be estimated, and how."""

    operation: UserOperation
    # The limits with which the first validation is tried, at most four, lowest first.
    ladder: tuple[int, ...]
    # See `strict` of the contract's Task.
    strict: bool = True
    known: Searches = Searches()


_SEARCH = "(uint256,uint256,uint256)"
_TASK = (
    f"(bytes,uint256,uint256,uint256[],(address,bytes)[],address,(address,bytes),bool,bool,uint256,uint256,"
    f"{_SEARCH},{_SEARCH},{_SEARCH},{_SEARCH})"
)


def encode_estimation(entry_point: EntryPointCode, wanted: Estimation) -> bytes:
    """Calldata of `estimate`."""
    operation, known = wanted.operation, wanted.known
    codec = codec_for(entry_point.version)
    bundle, place, paymaster_place = _marked_bundle(entry_point.version, operation)
    prefund = codec.required_prefund(operation)
    missing = prefund if operation.paymaster is None else 0
    task = members(
        [
            dynamic(bundle),
            word(place),
            word(paymaster_place),
            Tail(word(len(wanted.ladder)) + b"".join(map(word, wanted.ladder))),
            array(map(_call, preparations(entry_point, operation, missing))),
            address_word(operation.paymaster or bytes(20)),
            Tail(_call(execution(entry_point, operation))),
            word(wanted.strict),
            word(codec.release.packed),
            word(prefund),
            word(operation.max_fee_per_gas),
            *_search(known.verification),
            *_search(known.paymaster_verification),
            *_search(known.call),
            *_search(known.post),
        ]
    )
    return _selector(f"estimate({_TASK})") + members([Tail(task)])


def decode_estimation(data: bytes) -> Found:
    """What `estimate` returns. Raises `Malformed` when this is something else."""
    reader = Reader(data, Reader(data).number(0, bits=32))
    status = reader.number(0, bits=8)
    searches = [Search(*(reader.number(1 + 3 * place + each) for each in range(3))) for place in range(4)]
    return Found(_STATUSES[status], Searches(*searches), reader.data(13))


def _marked_bundle(version: Version, operation: UserOperation) -> tuple[bytes, int, int]:
    """The bundle, and where in it the two limits stand: found by numbers put there that occur nowhere else."""
    first, second = (secrets.randbits(8 * _LIMIT_BYTES) for _ in range(2))
    packed = codec_for(version).release.packed and operation.paymaster is not None
    changes = {"verification_gas_limit": first} | ({"paymaster_verification_gas_limit": second} if packed else {})
    bundle = encode_bundle(version, [msgspec.structs.replace(operation, **changes)])
    place = bundle.index(first.to_bytes(_LIMIT_BYTES, "big"))
    return bundle, place, bundle.index(second.to_bytes(_LIMIT_BYTES, "big")) if packed else 0


def _call(call: Call) -> bytes:
    return members([address_word(call.target), dynamic(call.data)])


def _search(search: Search) -> tuple[bytes, bytes, bytes]:
    return word(search.low), word(search.high), word(search.used)
