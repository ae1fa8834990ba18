"""The backend that has the node trace operations: `debug_traceCall` with the tracer `erc7562Tracer`.

For nodes that have it: geth from 1.16 on, erigon, reth. One question gives the whole trace; the hashes of the code that
was visited take another. What the node tells is brought into the form of `trace` here and nowhere else. The quirks of
the tracer are evened out where a verdict depends on them.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, cast, get_args

import msgspec

from capstan.bundler.validation import opcodes
from capstan.bundler.validation.authorizations import check_nonce
from capstan.bundler.validation.runs import Run
from capstan.bundler.validation.state import BlockState, ChainState
from capstan.bundler.validation.trace import DEEPEST_CALL, GAS_DEPTH, CallKind, Frame, TooDeep, Trace, visited
from capstan.chain.calls.models import BlockRef
from capstan.chain.errors import EveryUpstreamFailed
from capstan.core.hexes import parse_address, parse_data, to_data, to_quantity
from capstan.userops.simulation import CALLER, nonce_override

TRACER = "erc7562Tracer"
_TIMEOUT = "10s"
# What a transaction pays before it runs, at most (EIP-2028, EIP-7623).
_TRANSACTION_GAS, _BYTE_GAS = 21_000, 40
_INPUT_BYTES = 36
_KINDS = frozenset(get_args(CallKind))
_OWN_CONTEXT = frozenset({"DELEGATECALL", "CALLCODE"})
# Errors that mean too little gas, beside those that the tracer marks itself; the specification has one for all.
_GAS_ERRORS = (
    "out of gas",
    "gas uint64 overflow",
    "not enough gas for reentrancy sentry",
    "max initcode size exceeded",
    "max code size exceeded",
)
_INVALID_OPCODE = "invalid opcode"
_NAMED = frozenset(opcodes.BANNED) | frozenset(opcodes.STAKED_ONLY) | {opcodes.CREATE, opcodes.CREATE2}
_DELEGATION_PREFIX = bytes.fromhex("ef0100")


class _Slots(msgspec.Struct, frozen=True, rename="camel"):
    reads: dict[str, Any] | None = None
    writes: dict[str, Any] | None = None
    transient_reads: dict[str, Any] | None = None
    transient_writes: dict[str, Any] | None = None


class _Size(msgspec.Struct, frozen=True, rename="camel"):
    contract_size: int
    opcode: int


class NodeFrame(msgspec.Struct, frozen=True, rename="camel"):
    """A call as the node's tracer tells it."""

    type: str
    accessed_slots: _Slots
    used_opcodes: dict[str, int]
    contract_size: dict[str, _Size]
    to: str | None = None
    value: str | None = None
    gas_used: str = "0x0"
    input: str = "0x"
    output: str = "0x"
    error: str = ""
    out_of_gas: bool = False
    ext_code_access_info: list[str] | None = None
    keccak: list[str] | None = None
    calls: list["NodeFrame"] | None = None


class NativeTracer:
    """Traces operations of one network on its nodes."""

    def __init__(self, state: ChainState) -> None:
        self._state = state

    async def trace(self, run: Run) -> Trace:
        """See `service.Tracer`. Raises `NodeError` when the nodes cannot do it."""
        asking = self._ask(run)
        if run.delegate is None:
            frame = await asking
        else:
            state, frame = await asyncio.gather(self._state.fetch(run.block, [run.operation.sender], {}), asking)
            check_nonce(run.operation, state.accounts[run.operation.sender][1])
        try:
            root = _until_execution(convert(frame, CALLER), run.entry_point)
            hashed = frozenset(parse_data(each) for each in frame.keccak or ())
        except ValueError as error:
            raise EveryUpstreamFailed(f"A node answered {TRACER} with something else.") from error
        seen = visited(root)
        state = await self._state.fetch(run.block, seen, {})
        hashes, delegated = self._hashes(run, state, seen)
        missing = {_delegate_of(state, address) for address in delegated} - seen - {None}
        if missing:
            found = cast("set[bytes]", missing)
            state = await self._state.fetch(run.block, found, {})
            hashes |= {address: state.accounts[address][2] for address in found}
        return Trace(root=root, hashed=hashed, code_hashes=hashes, delegated=delegated)

    async def code_hashes(self, block: BlockRef, addresses: frozenset[bytes]) -> Mapping[bytes, bytes]:
        """See `service.Tracer`."""
        return await self._state.code_hashes(block, addresses)

    async def _ask(self, run: Run) -> NodeFrame:
        transaction = {
            "from": to_data(CALLER),
            "to": to_data(run.entry_point),
            "data": to_data(run.data),
            "gas": to_quantity(run.gas + _TRANSACTION_GAS + _BYTE_GAS * len(run.data)),
        }
        options: dict[str, Any] = {"tracer": TRACER, "timeout": _TIMEOUT}
        overrides: dict[str, Any] = {}
        if run.delegate is not None:
            overrides[to_data(run.operation.sender)] = {"code": to_data(run.delegation)}
        if run.queued:
            slot, value = nonce_override(run.operation)
            overrides[to_data(run.entry_point)] = {"stateDiff": {to_data(slot): to_data(value)}}
        if overrides:
            options["stateOverrides"] = overrides
        try:
            answer = await self._state.ask("debug_traceCall", [transaction], run.block, after=[options])
            return msgspec.convert(answer, NodeFrame)
        except RecursionError:
            raise TooDeep from None
        except msgspec.ValidationError as error:
            raise EveryUpstreamFailed(f"A node answered {TRACER} with something else.") from error

    @staticmethod
    def _hashes(run: Run, state: BlockState, seen: set[bytes]) -> tuple[dict[bytes, bytes], frozenset[bytes]]:
        hashes = {address: state.accounts[address][2] for address in seen}
        delegated = {address for address in seen if _delegate_of(state, address) is not None}
        if run.delegate is not None:
            sender = run.operation.sender
            hashes[sender] = run.delegation_hash
            delegated.add(sender)
        return hashes, frozenset(delegated)


def convert(frame: NodeFrame, caller: bytes, outer: bytes = b"", depth: int = 0) -> Frame:
    """A call of the node's tracer in our form. `outer` is the address under which the caller runs."""
    if depth > DEEPEST_CALL:
        raise TooDeep
    if frame.type not in _KINDS:
        raise ValueError(f"a call of the kind {frame.type!r}")
    target = parse_address(frame.to) if frame.to else b""
    context = outer if frame.type in _OWN_CONTEXT else target
    slots = frame.accessed_slots
    value = b"" if frame.type == "DELEGATECALL" or not frame.value else _number(frame.value)
    used = {int(each, 0) for each in frame.used_opcodes}
    return Frame(
        kind=cast("CallKind", frame.type),
        caller=caller,
        context=context,
        code=target,
        value=value,
        input=parse_data(frame.input)[: None if depth <= 1 else _INPUT_BYTES],
        output=parse_data(frame.output) if depth <= 1 else b"",
        gas_used=int(frame.gas_used, 16) if 0 < depth <= GAS_DEPTH else 0,
        failed=bool(frame.error),
        out_of_gas=frame.out_of_gas or any(text in frame.error for text in _GAS_ERRORS),
        invalid_opcode=frame.error.startswith(_INVALID_OPCODE),
        opcodes=frozenset(each for each in used if each in _NAMED or each not in opcodes.ASSIGNED),
        reads=_words(slots.reads),
        writes=_words(slots.writes),
        transient_reads=_words(slots.transient_reads),
        transient_writes=_words(slots.transient_writes),
        looked_at=frozenset(parse_address(each) for each in frame.ext_code_access_info or ()),
        sizes={parse_address(key): (each.contract_size, each.opcode) for key, each in frame.contract_size.items()},
        calls=tuple(convert(each, context, context, depth + 1) for each in frame.calls or ()),
    )


def _until_execution(root: Frame, entry_point: bytes) -> Frame:
    """Without what came after the validation. Of the call with which the execution begins, only that it was made."""
    calls: list[Frame] = []
    for each in root.calls:
        if each.context == entry_point and each.caller == entry_point:
            calls.append(msgspec.structs.replace(each, calls=(), sizes={}, gas_used=0))
            break
        calls.append(each)
    return msgspec.structs.replace(root, calls=tuple(calls))


def _delegate_of(state: BlockState, address: bytes) -> bytes | None:
    code = state.codes[state.accounts[address][2]]
    return code[3:] if len(code) == 23 and code.startswith(_DELEGATION_PREFIX) else None


def _number(text: str) -> bytes:
    return int(text, 16).to_bytes(32, "big").lstrip(b"\0")


def _words(table: dict[str, Any] | None) -> frozenset[bytes]:
    return frozenset(parse_data(key) for key in table or ())
