"""What the call of an operation really calls: the targets and methods behind the common shapes of accounts.

Called by sponsoring, for policies with rules about contracts and methods. It knows the calls by which SimpleAccount,
LightAccount, the Safe 4337 module, Kernel and every ERC-7579 account execute. What it does not know it does not guess:
then the call is undecodable. It reads the calldata alone; whether the account does what its calldata says is for its
code. Pure.
"""

from collections.abc import Callable

import msgspec

from capstan.core.hexes import keccak256
from capstan.userops.abi import Malformed, Reader
from capstan.userops.gas import EXECUTE_USER_OP_SELECTOR

_SELECTOR = 4
_ADDRESS = 20
_WORD = 32
# An account that calls itself may do so again; no honest operation goes deep.
_DEEPEST = 4
# Safe's own contracts that pass on a list of calls, in the versions in use (1.3.0 and 1.4.1). They are called by
# delegation. Of any other contract it cannot be known what it does with such a list.
_MULTI_SENDS = frozenset(
    bytes.fromhex(address)
    for address in (
        "A238CBeb142c10Ef7Ad8442C6D1f9E89e07e7761",
        "40A2aCCbd92BCA938b02010E17A5b8929b49130D",
        "998739BFdAAdde7C933B942a68053933098f9EDa",
        "A1dabEF33b3B82c7814B6D82A79e50F4AC44102B",
        "38869bf66a61cF6bDB996A6aE40D5853Fd43B526",
        "9641d764fc13c8B624c04430C7356C1C7C8102e2",
    )
)
# ERC-7579: the first byte of the mode says what is done; bytes 6 to 9 choose an extension, as ERC-7821 does.
_SINGLE, _BATCH, _STATIC, _DELEGATE = 0x00, 0x01, 0xFE, 0xFF
_ERC7821 = (bytes.fromhex("78210001"),)
_PLAIN = bytes(4)


class Undecodable(Exception):
    """The call cannot be read. The message says why, for the caller."""


class Call(msgspec.Struct, frozen=True):
    """One call that the operation makes."""

    target: bytes
    # None when there is no method: a plain transfer of the native coin.
    selector: bytes | None
    # Whether the code of the target runs in the name of the account.
    delegated: bool = False


def calls_of(sender: bytes, call_data: bytes) -> list[Call]:
    """Every call that the operation makes, in their order; none when its calldata is empty. Raises `Undecodable`."""
    return _decode(sender, call_data, 0) if call_data else []


def _decode(sender: bytes, call_data: bytes, depth: int) -> list[Call]:
    if depth > _DEEPEST:
        raise Undecodable("the account calls itself too many times over")
    if call_data[:_SELECTOR] == EXECUTE_USER_OP_SELECTOR:
        # The account is given the whole operation and executes what follows the selector.
        return _decode(sender, call_data[_SELECTOR:], depth + 1)
    shape = _SHAPES.get(call_data[:_SELECTOR])
    if shape is None:
        raise Undecodable(f"its callData begins with 0x{call_data[:_SELECTOR].hex()}, which is no known way to execute")
    try:
        inner = shape(Reader(call_data[_SELECTOR:]))
    except Malformed as error:
        raise Undecodable(f"its callData is malformed: {error}") from None
    found: list[Call] = []
    for target, data, delegated in inner:
        found += _expand(sender, target or sender, data, delegated, depth)
    return found


def _expand(sender: bytes, target: bytes, data: bytes, delegated: bool, depth: int) -> list[Call]:
    """One call, and what it leads to where that is known."""
    if 0 < len(data) < _SELECTOR:
        raise Undecodable("a call has data that is shorter than a method's selector")
    if delegated and target in _MULTI_SENDS:
        return _multi_send(sender, data, depth)
    call = Call(target, data[:_SELECTOR] or None, delegated)
    if target == sender and data:
        # Accounts may call themselves, and then execute just as well.
        return [call, *_decode(sender, data, depth + 1)]
    return [call]


# A target (None: the account itself), its calldata, and whether it is called by delegation.
_Inner = tuple[bytes | None, bytes, bool]
_Shape = Callable[[Reader], list[_Inner]]


def _execute(reader: Reader) -> list[_Inner]:
    """execute(address,uint256,bytes)"""
    return [(reader.address(0), reader.data(2), False)]


def _execute_operation(reader: Reader) -> list[_Inner]:
    """With a fourth argument that is 1 for a delegated call."""
    return [(reader.address(0), reader.data(2), reader.flag(3))]


def _delegate(reader: Reader) -> list[_Inner]:
    return [(reader.address(0), reader.data(1), True)]


def _lists(reader: Reader) -> list[_Inner]:
    """executeBatch(address[],bytes[])"""
    return _paired(reader.words(0), reader.strings(1))


def _lists_with_values(reader: Reader) -> list[_Inner]:
    """executeBatch(address[],uint256[],bytes[]), where an empty list of values means none."""
    targets, values = reader.words(0), reader.words(1)
    if values and len(values) != len(targets):
        raise Malformed("the lists of a batch have different lengths")
    return _paired(targets, reader.strings(2))


def _structs(reader: Reader) -> list[_Inner]:
    """executeBatch((address,uint256,bytes)[])"""
    return [(each.address(0), each.data(2), False) for each in reader.structs(0)]


def _erc7579(reader: Reader) -> list[_Inner]:
    """execute(bytes32,bytes): the mode says what the bytes are."""
    mode, execution = reader.word(0), reader.data(1)
    kind, extension = mode[0], mode[6:10]
    if extension != _PLAIN and not (kind == _BATCH and extension in _ERC7821):
        raise Malformed(f"the execution mode 0x{mode[:10].hex()} is not known")
    if kind == _BATCH:
        batch = _structs(Reader(execution))
        # ERC-7821: the zero address stands for the account itself.
        return [(target if extension == _PLAIN or any(target or b"") else None, data, _) for target, data, _ in batch]
    head = _ADDRESS if kind == _DELEGATE else _ADDRESS + _WORD
    if kind not in (_SINGLE, _STATIC, _DELEGATE) or len(execution) < head:
        raise Malformed(f"the execution mode 0x{mode[:10].hex()} is not known, or its data is too short")
    return [(execution[:_ADDRESS], execution[head:], kind == _DELEGATE)]


def _paired(targets: list[bytes], datas: list[bytes]) -> list[_Inner]:
    if len(targets) != len(datas):
        raise Malformed("the lists of a batch have different lengths")
    return [(Reader(word).address(0), data, False) for word, data in zip(targets, datas, strict=True)]


def _multi_send(sender: bytes, data: bytes, depth: int) -> list[Call]:
    """Safe's multiSend(bytes): kind, target, value, length and data of each call, packed one after the other."""
    if data[:_SELECTOR] != _MULTI_SEND:
        raise Undecodable("it calls a MultiSend contract by something else than multiSend(bytes)")
    try:
        packed = Reader(data[_SELECTOR:]).data(0)
    except Malformed as error:
        raise Undecodable(f"its multiSend is malformed: {error}") from None
    found: list[Call] = []
    while packed:
        head = 1 + _ADDRESS + 2 * _WORD
        length = int.from_bytes(packed[head - _WORD : head], "big")
        if len(packed) < head + length or packed[0] > 1:
            raise Undecodable("its multiSend is malformed: the data ends too early, or a call is of no known kind")
        # In some versions the zero address stands for the account itself.
        target = packed[1 : 1 + _ADDRESS]
        target = target if any(target) else sender
        found += _expand(sender, target, packed[head : head + length], packed[0] == 1, depth + 1)
        packed = packed[head + length :]
    return found


def _selector(signature: str) -> bytes:
    return keccak256(signature.encode())[:_SELECTOR]


_MULTI_SEND = _selector("multiSend(bytes)")

_SHAPES: dict[bytes, _Shape] = {
    _selector(signature): shape
    for signature, shape in (
        # SimpleAccount, LightAccount, Kernel 2, Coinbase Smart Wallet.
        ("execute(address,uint256,bytes)", _execute),
        ("executeBatch(address[],bytes[])", _lists),
        ("executeBatch(address[],uint256[],bytes[])", _lists_with_values),
        ("executeBatch((address,uint256,bytes)[])", _structs),
        # Kernel 2.
        ("execute(address,uint256,bytes,uint8)", _execute_operation),
        ("executeDelegateCall(address,bytes)", _delegate),
        # The Safe 4337 module.
        ("executeUserOp(address,uint256,bytes,uint8)", _execute_operation),
        ("executeUserOpWithErrorString(address,uint256,bytes,uint8)", _execute_operation),
        # ERC-7579, Kernel 3, Safe7579, ERC-7821.
        ("execute(bytes32,bytes)", _erc7579),
    )
}
