"""The rules of ERC-7562 as cases: what an entity does, and what is said to that.

Data for the tests, which run them on the development chain and on geth. `{name}` in a program is the address of a
helper contract, `{ep}` that of the entry point.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from capstan.bundler.models import Role
from tests.support.bytecode import SENDER, assemble, calling, calling_function

# Helper contracts, by name: each does one thing when it is called.
HELPERS: dict[str, bytes] = {
    "idle": assemble("STOP"),
    "reader": assemble("PUSH0 CALLDATALOAD SLOAD POP"),
    "writer": assemble("1 PUSH0 CALLDATALOAD SSTORE"),
    # A mapping at slot 0, by the first word; the second is how far behind the hash.
    "mapped_reader": assemble(
        "32 CALLDATALOAD PUSH0 CALLDATALOAD PUSH0 MSTORE PUSH0 32 MSTORE 64 PUSH0 KECCAK256 ADD SLOAD POP"
    ),
    "mapped_writer": assemble(
        "1 32 CALLDATALOAD PUSH0 CALLDATALOAD PUSH0 MSTORE PUSH0 32 MSTORE 64 PUSH0 KECCAK256 ADD SSTORE"
    ),
    "transient": assemble("1 PUSH0 CALLDATALOAD TSTORE"),
    "invalid": assemble("INVALID"),
    "unassigned": assemble("!0c"),
    "suicidal": assemble("PUSH0 SELFDESTRUCT"),
    "endless": assemble("JUMPDEST PUSH0 JUMP"),
    "creator": assemble("PUSH0 PUSH0 PUSH0 CREATE POP"),
    "creator2": assemble("7 PUSH0 PUSH0 PUSH0 CREATE2 POP"),
    "clock": assemble("TIMESTAMP POP"),
    "nested": assemble("PUSH0 PUSH0 PUSH0 PUSH0 PUSH0 ADDRESS GAS CALL STOP"),
}
NOWHERE = "0x00000000000000000000000000000000deadbeef"
_CREATE, _CREATE2 = "PUSH0 PUSH0 PUSH0 CREATE POP", "1 PUSH0 PUSH0 PUSH0 CREATE2 POP"


@dataclass(frozen=True)
class Case:
    """What the entities do. No factory program: the account exists. No paymaster program: there is none."""

    name: str
    # What the refusal begins with; None when the operation is valid.
    refused: str | None = None
    account: str = ""
    factory: str | None = None
    paymaster: str | None = None
    staked: frozenset[Role] = field(default_factory=frozenset)
    # Ether that the account owns.
    funds: int = 0


def _opcodes() -> list[Case]:
    plain = ["ORIGIN", "GASPRICE", "COINBASE", "TIMESTAMP", "NUMBER", "DIFFICULTY", "GASLIMIT", "BASEFEE"]
    programs = {name: f"{name} POP" for name in [*plain, "BLOBBASEFEE", "GAS"]}
    programs |= {"BLOCKHASH": "PUSH0 BLOCKHASH POP", "BLOBHASH": "PUSH0 BLOBHASH POP"}
    programs |= {"INVALID": calling("{invalid}", gas="5000"), "SELFDESTRUCT": calling("{suicidal}")}
    cases = [
        Case(f"{'OP-012' if name == 'GAS' else 'OP-011'} {name}", f"account uses banned opcode: {name}", program)
        for name, program in programs.items()
    ]
    for name in ("NUMBER", "GAS", "SELFDESTRUCT"):
        program = programs[name]
        cases += [
            Case(f"OP-011 factory {name}", f"factory uses banned opcode: {name}", factory=program),
            Case(f"OP-011 paymaster {name}", f"paymaster uses banned opcode: {name}", paymaster=program),
        ]
    return [
        *cases,
        Case("OP-011 in a contract that is called", "account uses banned opcode: TIMESTAMP", calling("{clock}")),
        Case(
            "OP-011 in a delegatecall", "account uses banned opcode: TIMESTAMP", calling("{clock}", kind="DELEGATECALL")
        ),
        Case(
            "OP-011 however much is staked",
            "account uses banned opcode: NUMBER",
            "NUMBER POP",
            staked=_staked("account"),
        ),
        Case("OP-012 before a call", None, calling("{idle}") + " " + calling("{idle}", kind="DELEGATECALL")),
        Case("OP-013", "account uses unassigned opcode: 0x0c", calling("{unassigned}", gas="5000")),
        Case("nesting", "the validation nests calls more than 256 deep", calling("{nested}")),
        Case("OP-020", "account internally reverts on oog", calling("{endless}", gas="10000")),
        Case("OP-020 at SSTORE", "paymaster internally reverts on oog", paymaster=calling("{writer}", gas="2299")),
        Case("OP-020 factory", "factory internally reverts on oog", factory=calling("{endless}", gas="10000")),
    ]


def _creations() -> list[Case]:
    staked = _staked("factory")
    return [
        Case("OP-031 once", None, factory=""),
        Case("OP-031 twice", "factory uses banned opcode: CREATE2", factory=_CREATE2),
        Case("OP-031 CREATE", "factory uses banned opcode: CREATE", factory=_CREATE),
        Case("OP-031 without factory", "account uses banned opcode: CREATE2", _CREATE2),
        Case("OP-031 by a paymaster", "paymaster uses banned opcode: CREATE2", paymaster=_CREATE2),
        Case("OP-032", None, _CREATE, factory=""),
        Case("OP-032 without factory", "account uses banned opcode: CREATE", _CREATE),
        Case("OP-032 CREATE2", "account uses banned opcode: CREATE2", _CREATE2, factory=""),
        Case("OP-032 through another", "account uses banned opcode: CREATE", calling("{creator}"), factory=""),
        Case("EREP-060 account", None, f"{_CREATE} {_CREATE2}", factory="", staked=staked),
        Case("EREP-060 factory", None, factory=f"{_CREATE} {_CREATE2}", staked=staked),
        Case(
            "EREP-060 through another",
            "account uses banned opcode: CREATE",
            calling("{creator}"),
            factory="",
            staked=staked,
        ),
        Case("EREP-061", None, factory=calling("{creator}") + " " + calling("{creator2}"), staked=staked),
    ]


def _addresses() -> list[Case]:
    undeployed = "account accesses un-deployed contract address 0x00000000000000000000000000000000DeaDBeef with opcode"
    looks = {
        "EXTCODESIZE": f"{NOWHERE} EXTCODESIZE POP",
        "EXTCODEHASH": f"{NOWHERE} EXTCODEHASH POP",
        "EXTCODECOPY": f"PUSH0 PUSH0 PUSH0 {NOWHERE} EXTCODECOPY",
    }
    kinds = ("CALL", "CALLCODE", "DELEGATECALL", "STATICCALL")
    looks |= {kind: calling(NOWHERE, kind=kind) for kind in kinds}
    cases = [Case(f"OP-041 {name}", f"{undeployed} {name}", program) for name, program in looks.items()]
    into = "illegal call into EntryPoint during validation"
    at = "account accesses EntryPoint contract address"
    allowed = " ".join(calling(f"{number:#042x}", gas="1000") for number in [*range(1, 0x12), 0x100])
    return [
        *cases,
        Case("OP-042", None, factory="{sender} EXTCODESIZE POP " + calling("{sender}")),
        Case("OP-051", None, "{ep} EXTCODESIZE ISZERO POP"),
        Case("OP-052", None, calling_function("{ep}", "b760faf9", "ADDRESS", value=1), funds=10),
        Case("OP-052 for another", into, calling_function("{ep}", "b760faf9", "{idle}")),
        Case("OP-052 by a paymaster", into, paymaster=calling_function("{ep}", "b760faf9", SENDER)),
        Case("OP-053", None, calling("{ep}", value=1), funds=10),
        Case("OP-053 by a paymaster", into, paymaster=calling("{ep}")),
        Case("OP-054 call", into, calling_function("{ep}", "70a08231", "ADDRESS")),
        Case("OP-054 EXTCODESIZE", at, "{ep} EXTCODESIZE POP"),
        Case("OP-054 EXTCODEHASH", at, "{ep} EXTCODEHASH POP"),
        Case("OP-054 EXTCODECOPY", at, "PUSH0 PUSH0 PUSH0 {ep} EXTCODECOPY"),
        Case("OP-055", None, calling_function("{ep}", "0bd28e3b", "5")),
        Case("OP-055 by a paymaster", into, paymaster=calling_function("{ep}", "0bd28e3b", "5")),
        Case("OP-061", "account may not make a CALL with value", calling("{idle}", value=1), funds=10),
        Case("OP-061 without the funds", "account may not make a CALL with value", calling("{idle}", value=1)),
        Case("OP-062", None, allowed),
        Case("OP-062 forbidden", "account calls forbidden precompile", calling(f"{0x64:#042x}")),
    ]


def _storage() -> list[Case]:
    own = "1 SLOAD POP 1 1 SSTORE"
    written, read = calling("{mapped_writer}", "{who}", "{far}"), calling("{mapped_reader}", "{who}", "{far}")

    def mapped(program: str, who: str, far: int = 0) -> str:
        return program.replace("{who}", who).replace("{far}", str(far))

    sender_read, sender_written = mapped(read, SENDER), mapped(written, SENDER)
    return [
        Case("STO-010", None, own),
        Case("STO-010 in a delegatecall", None, calling("{writer}", "5", kind="DELEGATECALL")),
        Case("STO-010 by a paymaster", None, own, paymaster=calling("SENDER".replace("SENDER", SENDER))),
        Case("STO-010 of another", "unstaked account accessed", calling("{reader}", "5")),
        Case("STO-010 write to another", "account has forbidden write to", calling("{writer}", "5")),
        Case("STO-021", None, mapped(read, "ADDRESS") + " " + mapped(written, "ADDRESS")),
        Case("STO-021 in a struct", None, mapped(written, "ADDRESS", 128)),
        Case("STO-021 beyond a struct", "account has forbidden write to", mapped(written, "ADDRESS", 129)),
        Case("STO-021 its own number", None, calling("{writer}", "ADDRESS")),
        Case("STO-021 by a paymaster", None, paymaster=f"{sender_read} {sender_written}"),
        Case("STO-021 of another", "account has forbidden write to", mapped(written, "{idle}")),
        Case("STO-022 unstaked", "unstaked account accessed", mapped(written, "ADDRESS"), factory=""),
        Case("STO-022", None, mapped(written, "ADDRESS"), factory="", staked=_staked("factory")),
        Case(
            "STO-022 paymaster",
            "unstaked paymaster accessed",
            factory="",
            paymaster=sender_read,
            staked=_staked("factory"),
        ),
        Case("STO-031 unstaked", "unstaked paymaster accessed paymaster slot", paymaster=own),
        Case("STO-031", None, paymaster=own, staked=_staked("paymaster")),
        Case("STO-031 factory unstaked", "unstaked factory accessed factory slot", factory=own),
        Case("STO-031 factory", None, factory=own, staked=_staked("factory")),
        Case("STO-032 unstaked", "unstaked paymaster accessed", paymaster=mapped(written, "ADDRESS")),
        Case("STO-032", None, paymaster=mapped(written, "ADDRESS"), staked=_staked("paymaster")),
        Case("STO-033", None, paymaster=calling("{reader}", "5"), staked=_staked("paymaster")),
        Case("STO-033 account", None, calling("{reader}", "5"), staked=_staked("account")),
        Case(
            "STO-033 write",
            "paymaster has forbidden write to",
            paymaster=calling("{writer}", "5"),
            staked=_staked("paymaster"),
        ),
        Case("OP-070", None, "1 1 TSTORE 1 TLOAD POP"),
        Case("OP-070 unstaked", "unstaked paymaster accessed paymaster slot", paymaster="1 TLOAD POP"),
        Case("OP-070 staked", None, paymaster="1 1 TSTORE", staked=_staked("paymaster")),
        Case("OP-070 of another", "account has forbidden write to transient", calling("{transient}", "5")),
        Case("OP-080 BALANCE", "unstaked account uses banned opcode: BALANCE", "ADDRESS BALANCE POP"),
        Case("OP-080 SELFBALANCE", "unstaked paymaster uses banned opcode: SELFBALANCE", paymaster="SELFBALANCE POP"),
        Case("OP-080 staked", None, "ADDRESS BALANCE POP SELFBALANCE POP", staked=_staked("account")),
        Case("OP-080 staked factory", None, factory="SELFBALANCE POP", staked=_staked("factory")),
    ]


def _staked(*roles: Role) -> frozenset[Role]:
    return frozenset(roles)


CASES: tuple[Case, ...] = (*_opcodes(), *_creations(), *_addresses(), *_storage())
