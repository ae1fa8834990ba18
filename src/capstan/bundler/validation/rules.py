"""The opcode rules of ERC-7562, from OP-011 to OP-080, and those on EIP-7702 accounts.

Called by the service with the calls of each entity. A violation names its rule in the words that bundlers share. Pure.
"""

from collections.abc import Iterator

import msgspec

from capstan.bundler.models import Role
from capstan.bundler.validation import opcodes
from capstan.bundler.validation.trace import CREATIONS, Frame, Trace
from capstan.chain.calls.models import selector
from capstan.core.hexes import to_checksum_address

_DEPOSIT_TO = selector("depositTo(address)")
_INCREMENT_NONCE = selector("incrementNonce(uint192)")
# OP-062: the precompiles that depend on their input alone. EIP-2537 ends at 0x11, P256VERIFY is at 0x100.
_ALLOWED_PRECOMPILES = frozenset([*range(0x01, 0x12), 0x100])
_PRECOMPILES_BELOW = 0x10000


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The operation whose trace is judged."""

    entry_point: bytes
    sender: bytes
    # None for an EIP-7702 sender, which is not created.
    factory: bytes | None = None
    paymaster: bytes | None = None
    # The entities whose stake counts.
    staked: frozenset[Role] = frozenset()
    # Entry point 0.6 calls postOp a second time with what an unstaked paymaster gave it (EREP-050).
    second_post_op: bool = False

    def address(self, role: Role) -> bytes | None:
        """The address of an entity."""
        return {"account": self.sender, "factory": self.factory, "paymaster": self.paymaster}.get(role)

    def name(self, address: bytes) -> str:
        """What an address is called in messages."""
        roles: tuple[Role, ...] = ("account", "factory", "paymaster")
        return next((role for role in roles if address == self.address(role)), to_checksum_address(address))


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that was broken, and by whom."""

    rule: str
    role: Role
    message: str
    # Whether a stake would have allowed it.
    stake_helps: bool = False


def judge_opcodes(subject: Subject, trace: Trace, role: Role, top: Frame) -> Iterator[Violation]:
    """What the calls of one entity break, outermost first."""
    created = _Creations(subject, role)
    for frame in top.walk():
        yield from created.judge(frame)
        yield from _judge_call(subject, role, frame)
        if frame.code == subject.entry_point:
            # Within the code of the entry point itself, which may do what it likes.
            continue
        yield from _judge_opcodes(subject, role, frame)
        yield from _judge_addresses(subject, role, frame, trace)


def judge_delegations(subject: Subject, trace: Trace) -> Iterator[Violation]:
    """AUTH-020: an account that delegates to a contract takes part as sender only."""
    roles: tuple[Role, ...] = ("factory", "paymaster")
    for role in roles:
        address = subject.address(role)
        if address is not None and address != subject.sender and address in trace.delegated:
            yield Violation(rule="AUTH-020", role=role, message=f"{role} is an account with an EIP-7702 delegation")


def _judge_opcodes(subject: Subject, role: Role, frame: Frame) -> Iterator[Violation]:
    for opcode in sorted(frame.opcodes):
        if opcode in opcodes.BANNED:
            rule = "OP-012" if opcode == opcodes.GAS else "OP-011"
            yield Violation(rule=rule, role=role, message=f"{role} uses banned opcode: {opcodes.BANNED[opcode]}")
        elif opcode in opcodes.STAKED_ONLY and role not in subject.staked:
            name = opcodes.STAKED_ONLY[opcode]
            yield Violation(
                rule="OP-080", role=role, message=f"unstaked {role} uses banned opcode: {name}", stake_helps=True
            )
        elif opcode not in opcodes.ASSIGNED:
            yield Violation(
                rule="OP-013", role=role, message=f"{role} uses unassigned opcode: {opcodes.name_of(opcode)}"
            )
    if frame.invalid_opcode and frame.opcodes <= opcodes.ASSIGNED and 0xFE not in frame.opcodes:
        yield Violation(rule="OP-013", role=role, message=f"{role} uses an opcode that this chain does not have")
    # Whether a precompile has enough gas depends on its input and on the gas it was given, nothing else.
    if frame.out_of_gas and not _is_allowed_precompile(frame.code):
        yield Violation(rule="OP-020", role=role, message=f"{role} internally reverts on oog")


def _judge_addresses(subject: Subject, role: Role, frame: Frame, trace: Trace) -> Iterator[Violation]:
    for address, (size, opcode) in frame.sizes.items():
        name = opcodes.name_of(opcode)
        if _is_allowed_precompile(address):
            continue
        if int.from_bytes(address, "big") < _PRECOMPILES_BELOW:
            yield Violation(
                rule="OP-062",
                role=role,
                message=f"{role} calls forbidden precompile {to_checksum_address(address)} with opcode {name}",
            )
        elif size == 0 and address not in (subject.sender, subject.entry_point):
            yield Violation(
                rule="OP-041",
                role=role,
                message=f"{role} accesses un-deployed contract address {to_checksum_address(address)} with opcode"
                f" {name}",
            )
        elif address in trace.delegated and address != subject.sender and opcode in opcodes.CALLS:
            yield Violation(
                rule="AUTH-030",
                role=role,
                message=f"{role} calls {to_checksum_address(address)}, an account with an EIP-7702 delegation that is"
                " not the sender",
            )
    if subject.entry_point in frame.looked_at:
        yield Violation(
            rule="OP-054",
            role=role,
            message=f"{role} accesses EntryPoint contract address {to_checksum_address(subject.entry_point)} with"
            " EXTCODE* opcode",
        )


def _judge_call(subject: Subject, role: Role, frame: Frame) -> Iterator[Violation]:
    """OP-05x, OP-061: calls of the entry point, and calls with value."""
    if frame.caller == subject.entry_point or frame.kind == "SELFDESTRUCT":
        return
    if frame.code == subject.entry_point or frame.context == subject.entry_point:
        if not _may_call_entry_point(subject, role, frame):
            method = "0x" + frame.input[:4].hex()
            yield Violation(
                rule="OP-054", role=role, message=f"illegal call into EntryPoint during validation {method}"
            )
    elif frame.value:
        yield Violation(rule="OP-061", role=role, message=f"{role} may not make a {frame.kind} with value")


def _may_call_entry_point(subject: Subject, role: Role, frame: Frame) -> bool:
    if frame.kind != "CALL" or role == "paymaster":
        return False
    if frame.input[:4] == _DEPOSIT_TO:
        # OP-052.
        return frame.caller in (subject.sender, subject.factory) and frame.input[16:36] == subject.sender
    if frame.caller != subject.sender:
        return False
    # OP-053, the fallback function, and OP-055.
    return not frame.input or frame.input[:4] == _INCREMENT_NONCE


class _Creations:
    """OP-031, OP-032, EREP-060, EREP-061: who may create contracts."""

    def __init__(self, subject: Subject, role: Role) -> None:
        self._subject = subject
        self._role: Role = role
        self._sender_created = False

    def judge(self, frame: Frame) -> Iterator[Violation]:
        for call in frame.calls:
            if call.kind in CREATIONS and not self._may_create(call):
                yield Violation(
                    rule="OP-031" if self._role == "factory" else "OP-011",
                    role=self._role,
                    message=f"{self._role} uses banned opcode: {call.kind}",
                )

    def _may_create(self, call: Frame) -> bool:
        subject, role = self._subject, self._role
        if subject.factory is None or role not in ("factory", "account"):
            return False
        if "factory" in subject.staked and (role == "factory" or call.caller == subject.sender):
            # EREP-060 for the factory and the sender themselves, EREP-061 for what the factory calls.
            return True
        if call.kind == "CREATE":
            # OP-032.
            return call.caller == subject.sender
        if role == "factory" and call.context == subject.sender and not self._sender_created:
            self._sender_created = True
            return True
        return False


def _is_allowed_precompile(address: bytes) -> bool:
    return int.from_bytes(address, "big") in _ALLOWED_PRECOMPILES
