"""What an operation really calls, from encodings made by eth-abi as wallets make them."""

import pytest
from eth_abi.abi import encode
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from capstan.gas.sponsor.calls import Call, Undecodable, calls_of

SENDER = b"\x5e" * 20
ONE, TWO = b"\x11" * 20, b"\x22" * 20
TRANSFER = keccak(b"transfer(address,uint256)")[:4]
APPROVE = keccak(b"approve(address,uint256)")[:4]
TRANSFER_DATA = TRANSFER + encode(["address", "uint256"], [TWO, 5])
APPROVE_DATA = APPROVE + encode(["address", "uint256"], [TWO, 6])
MULTI_SEND_CALL_ONLY = bytes.fromhex("9641d764fc13c8B624c04430C7356C1C7C8102e2")
BOTH = [Call(ONE, TRANSFER), Call(TWO, APPROVE)]


def encoded(signature: str, *values: object) -> bytes:
    """Calldata of a function by its signature."""
    inner = signature[signature.index("(") + 1 : -1]
    kinds, depth, word = [], 0, ""
    for letter in inner + ",":
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            kinds.append(word)
            word = ""
        else:
            word += letter
    return keccak(signature.encode())[:4] + encode(kinds, list(values))


def mode(kind: int, extension: str = "00000000", failing: int = 0) -> bytes:
    return bytes([kind, failing]) + bytes(4) + bytes.fromhex(extension) + bytes(22)


def packed(kind: int, target: bytes, data: bytes) -> bytes:
    return bytes([kind]) + target + bytes(32) + len(data).to_bytes(32, "big") + data


STRUCTS = [(ONE, 1, TRANSFER_DATA), (TWO, 0, APPROVE_DATA)]
EXECUTE = encoded("execute(address,uint256,bytes)", ONE, 7, TRANSFER_DATA)
BATCH = encoded("executeBatch((address,uint256,bytes)[])", STRUCTS)
MULTI = encoded("multiSend(bytes)", packed(0, ONE, TRANSFER_DATA) + packed(0, TWO, APPROVE_DATA))
SAFE = "executeUserOp(address,uint256,bytes,uint8)"
ERC7579 = "execute(bytes32,bytes)"


@pytest.mark.parametrize(
    ("call_data", "expected"),
    [
        (b"", []),
        (EXECUTE, [Call(ONE, TRANSFER)]),
        (encoded("execute(address,uint256,bytes)", ONE, 7, b""), [Call(ONE, None)]),
        (encoded("executeBatch(address[],bytes[])", [ONE, TWO], [TRANSFER_DATA, APPROVE_DATA]), BOTH),
        (
            encoded("executeBatch(address[],uint256[],bytes[])", [ONE, TWO], [1, 2], [TRANSFER_DATA, APPROVE_DATA]),
            BOTH,
        ),
        (encoded("executeBatch(address[],uint256[],bytes[])", [ONE, TWO], [], [TRANSFER_DATA, APPROVE_DATA]), BOTH),
        (BATCH, BOTH),
        (encoded("executeBatch(address[],bytes[])", [], []), []),
        (encoded("execute(address,uint256,bytes,uint8)", ONE, 0, TRANSFER_DATA, 0), [Call(ONE, TRANSFER)]),
        (encoded("execute(address,uint256,bytes,uint8)", ONE, 0, TRANSFER_DATA, 1), [Call(ONE, TRANSFER, True)]),
        (encoded("executeDelegateCall(address,bytes)", ONE, TRANSFER_DATA), [Call(ONE, TRANSFER, True)]),
        (encoded(SAFE, ONE, 0, TRANSFER_DATA, 0), [Call(ONE, TRANSFER)]),
        (encoded(SAFE, ONE, 0, TRANSFER_DATA, 1), [Call(ONE, TRANSFER, True)]),
        (
            encoded("executeUserOpWithErrorString(address,uint256,bytes,uint8)", ONE, 0, TRANSFER_DATA, 0),
            [Call(ONE, TRANSFER)],
        ),
        (encoded(SAFE, MULTI_SEND_CALL_ONLY, 0, MULTI, 1), BOTH),
        # A MultiSend that is called and not delegated to acts in its own name: it is a target like any other.
        (encoded(SAFE, MULTI_SEND_CALL_ONLY, 0, MULTI, 0), [Call(MULTI_SEND_CALL_ONLY, MULTI[:4])]),
        # Nobody knows what another contract does with the same list.
        (encoded(SAFE, ONE, 0, MULTI, 1), [Call(ONE, MULTI[:4], True)]),
        (encoded(ERC7579, mode(0x00), ONE + bytes(32) + TRANSFER_DATA), [Call(ONE, TRANSFER)]),
        (encoded(ERC7579, mode(0x00, failing=1), ONE + bytes(32)), [Call(ONE, None)]),
        (encoded(ERC7579, mode(0xFE), ONE + bytes(32) + TRANSFER_DATA), [Call(ONE, TRANSFER)]),
        (encoded(ERC7579, mode(0xFF), ONE + TRANSFER_DATA), [Call(ONE, TRANSFER, True)]),
        (encoded(ERC7579, mode(0x01), encode(["(address,uint256,bytes)[]"], [STRUCTS])), BOTH),
        (
            encoded(ERC7579, mode(0x01, "78210001"), encode(["(address,uint256,bytes)[]", "bytes"], [STRUCTS, b"x"])),
            BOTH,
        ),
        # ERC-7821: the zero address is the account itself, which executes in turn.
        (
            encoded(
                ERC7579, mode(0x01, "78210001"), encode(["(address,uint256,bytes)[]"], [[(bytes(20), 0, EXECUTE)]])
            ),
            [Call(SENDER, EXECUTE[:4]), Call(ONE, TRANSFER)],
        ),
        # The account is given the operation, and executes what follows the selector (Kernel 3, modular accounts).
        (bytes.fromhex("8dd7712f") + EXECUTE, [Call(ONE, TRANSFER)]),
        # An account that calls itself executes just as well.
        (
            encoded("execute(address,uint256,bytes)", SENDER, 0, BATCH),
            [Call(SENDER, BATCH[:4]), *BOTH],
        ),
    ],
)
def test_the_calls_behind_the_shapes_of_accounts(call_data: bytes, expected: list[Call]) -> None:
    assert calls_of(SENDER, call_data) == expected


@pytest.mark.parametrize(
    "call_data",
    [
        b"\x00",
        TRANSFER_DATA,
        EXECUTE[:-33],
        EXECUTE[:4],
        encoded("execute(address,uint256,bytes)", ONE, 0, b"\x01\x02"),
        # Dirty bits above an address: the account would revert.
        EXECUTE[:4] + b"\xff" * 12 + EXECUTE[16:],
        encoded("executeBatch(address[],bytes[])", [ONE], [TRANSFER_DATA, APPROVE_DATA]),
        encoded("executeBatch(address[],uint256[],bytes[])", [ONE, TWO], [1], [TRANSFER_DATA, APPROVE_DATA]),
        encoded(SAFE, ONE, 0, TRANSFER_DATA, 2),
        encoded(SAFE, MULTI_SEND_CALL_ONLY, 0, TRANSFER_DATA, 1),
        encoded(SAFE, MULTI_SEND_CALL_ONLY, 0, encoded("multiSend(bytes)", packed(0, ONE, b"1234")[:-1]), 1),
        encoded(SAFE, MULTI_SEND_CALL_ONLY, 0, encoded("multiSend(bytes)", packed(2, ONE, TRANSFER_DATA)), 1),
        encoded(ERC7579, mode(0x02), ONE + bytes(32)),
        encoded(ERC7579, mode(0x00), ONE),
        encoded(ERC7579, mode(0x00, "78210001"), ONE + bytes(32) + TRANSFER_DATA),
        encoded(ERC7579, mode(0x01, "78210002"), encode(["bytes[]"], [[b""]])),
        # The account calls itself by something that is not known.
        encoded("execute(address,uint256,bytes)", SENDER, 0, TRANSFER_DATA),
    ],
)
def test_what_cannot_be_read_is_not_guessed(call_data: bytes) -> None:
    with pytest.raises(Undecodable):
        calls_of(SENDER, call_data)


def test_an_account_that_calls_itself_forever_is_not_followed() -> None:
    data = EXECUTE
    for _ in range(10):
        data = encoded("execute(address,uint256,bytes)", SENDER, 0, data)
    with pytest.raises(Undecodable):
        calls_of(SENDER, data)


@given(st.binary(max_size=300), st.sampled_from([EXECUTE, BATCH, encoded(SAFE, ONE, 0, b"", 0), b"\xe9\xae\x5c\x53"]))
def test_no_bytes_break_it(noise: bytes, start: bytes) -> None:
    for data in (noise, start[:4] + noise, start[:68] + noise, bytes.fromhex("8dd7712f") + start[:36] + noise):
        try:
            calls_of(SENDER, data)
        except Undecodable:
            continue


@given(st.lists(st.tuples(st.binary(min_size=20, max_size=20), st.binary(min_size=4, max_size=90)), max_size=8))
def test_every_call_of_a_batch_is_seen_in_every_shape(batch: list[tuple[bytes, bytes]]) -> None:
    batch = [(target, data) for target, data in batch if target != SENDER and any(target)]
    expected = [Call(target, data[:4]) for target, data in batch]
    targets, datas = [target for target, _ in batch], [data for _, data in batch]
    structs = [(target, 3, data) for target, data in batch]
    multi = encoded("multiSend(bytes)", b"".join(packed(0, target, data) for target, data in batch))
    for call_data in (
        encoded("executeBatch(address[],bytes[])", targets, datas),
        encoded("executeBatch(address[],uint256[],bytes[])", targets, [1] * len(batch), datas),
        encoded("executeBatch((address,uint256,bytes)[])", structs),
        encoded(ERC7579, mode(1), encode(["(address,uint256,bytes)[]"], [structs])),
        encoded(SAFE, MULTI_SEND_CALL_ONLY, 0, multi, 1),
    ):
        assert calls_of(SENDER, call_data) == expected
