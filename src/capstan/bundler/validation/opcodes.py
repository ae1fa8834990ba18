"""The opcodes that the rules of ERC-7562 name, by number and by name.

Read by the rules and by both backends. The names are those that bundlers have always used in their messages.
"""

GAS = 0x5A
CREATE = 0xF0
CREATE2 = 0xF5
ISZERO = 0x15
EXTCODESIZE = 0x3B
EXTCODECOPY = 0x3C
EXTCODEHASH = 0x3F
KECCAK256 = 0x20
SLOAD, SSTORE, TLOAD, TSTORE = 0x54, 0x55, 0x5C, 0x5D
CALL, CALLCODE, DELEGATECALL, STATICCALL = 0xF1, 0xF2, 0xF4, 0xFA
BALANCE, SELFBALANCE = 0x31, 0x47

CALLS = frozenset({CALL, CALLCODE, DELEGATECALL, STATICCALL})
LOOKS = frozenset({EXTCODESIZE, EXTCODECOPY, EXTCODEHASH})
# OP-011, but for CREATE, which has rules of its own. 0x44 was DIFFICULTY before it became PREVRANDAO.
BANNED: dict[int, str] = {
    0x32: "ORIGIN",
    0x3A: "GASPRICE",
    0x40: "BLOCKHASH",
    0x41: "COINBASE",
    0x42: "TIMESTAMP",
    0x43: "NUMBER",
    0x44: "DIFFICULTY",
    0x45: "GASLIMIT",
    0x48: "BASEFEE",
    0x49: "BLOBHASH",
    0x4A: "BLOBBASEFEE",
    GAS: "GAS",
    0xFE: "INVALID",
    0xFF: "SELFDESTRUCT",
}
# OP-080.
STAKED_ONLY: dict[int, str] = {BALANCE: "BALANCE", SELFBALANCE: "SELFBALANCE"}
NAMES: dict[int, str] = (
    BANNED
    | STAKED_ONLY
    | {
        EXTCODESIZE: "EXTCODESIZE",
        EXTCODECOPY: "EXTCODECOPY",
        EXTCODEHASH: "EXTCODEHASH",
        CALL: "CALL",
        CALLCODE: "CALLCODE",
        DELEGATECALL: "DELEGATECALL",
        STATICCALL: "STATICCALL",
        CREATE: "CREATE",
        CREATE2: "CREATE2",
    }
)
# Every opcode that some fork assigns; all others break OP-013.
ASSIGNED: frozenset[int] = frozenset(
    [
        *range(0x0C),
        *range(0x10, 0x1F),
        0x20,
        *range(0x30, 0x4B),
        *range(0x50, 0x60),
        *range(0x60, 0xA5),
        *range(0xF0, 0xF6),
        *(0xFA, 0xFD, 0xFE, 0xFF),
    ]
)


def name_of(opcode: int) -> str:
    """The name of an opcode, or its number."""
    return NAMES.get(opcode, f"{opcode:#04x}")
