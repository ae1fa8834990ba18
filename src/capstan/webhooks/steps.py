"""The calls of a transaction, found in the steps of its execution.

Development chains have no callTracer; what they tell is every instruction with the stack before it (`structLogs` of
debug_traceTransaction). Called by the watcher of such a chain. The result has the shape of callTracer's, places
included. What a SELFDESTRUCT moves is not on the stack, so its value is not known here. Pure.
"""

from collections.abc import Sequence

import msgspec

from capstan.webhooks.traces import Call

# How far below the top of the stack an instruction has the address and the value.
_ADDRESS, _VALUE = -2, -3
_CALLS = frozenset({"CALL", "CALLCODE", "DELEGATECALL", "STATICCALL"})
_CREATIONS = frozenset({"CREATE", "CREATE2"})
# Code that runs in the place of its caller.
_BORROWED = frozenset({"CALLCODE", "DELEGATECALL"})
_ADDRESS_DIGITS = 40


class Step(msgspec.Struct, frozen=True, gc=False):
    """One instruction, and the stack before it."""

    op: str
    depth: int
    stack: tuple[str, ...]


class StepTrace(msgspec.Struct, frozen=True, rename="camel"):
    """The whole execution."""

    failed: bool
    struct_logs: tuple[Step, ...] = ()


class _Frame:
    """A call that may still be running."""

    def __init__(self, kind: str, caller: "_Frame | None", to: str | None, value: str, depth: int) -> None:
        self.kind = kind
        self.caller = caller
        self.to = to
        self.value = value
        # The depth of its own instructions.
        self.depth = depth
        self.failed = False
        self.inner: list[_Frame] = []
        if caller is not None:
            caller.inner.append(self)

    @property
    def place(self) -> str:
        """The account whose coins its instructions move."""
        if self.kind in _BORROWED and self.caller is not None:
            return self.caller.place
        return self.to or "0x"

    def end(self, top: str) -> None:
        """It ended, and left this on the caller's stack: zero if it failed, the new address if it created one."""
        self.failed = int(top, 16) == 0
        if self.kind in _CREATIONS and not self.failed:
            self.to = _address(top)

    def call(self, sender: str) -> Call:
        """What callTracer would tell."""
        inner = tuple(each.call(self.place) for each in self.inner)
        return Call(self.kind, sender, self.to, self.value, "failed" if self.failed else None, inner)


def call_of(sender: str, to: str | None, created: str | None, value: str, trace: StepTrace) -> Call:
    """The outermost call of a transaction with everything in it; `created` is the contract that it made."""
    top = _Frame("CALL" if to else "CREATE", None, to or created, value, 1)
    top.failed = trace.failed
    _follow(top, trace.struct_logs)
    return top.call(sender)


def _follow(top: _Frame, steps: Sequence[Step]) -> None:
    running = [top]
    ended: _Frame | None = None
    for step in steps:
        while len(running) > 1 and running[-1].depth > step.depth:
            ended = running.pop()
        if ended is not None and step.stack:
            # A call that has no instructions of its own (of an account without code) ends here as well.
            ended.end(step.stack[-1])
        ended = None
        if step.op in _CALLS or step.op in _CREATIONS:
            frame = _begun(step, running[-1])
            running.append(frame)
        elif step.op == "SELFDESTRUCT":
            _Frame(step.op, running[-1], _address(step.stack[-1]), "0x0", step.depth + 1)


def _begun(step: Step, caller: _Frame) -> _Frame:
    stack = step.stack
    if step.op in _CREATIONS:
        return _Frame(step.op, caller, None, "0x" + stack[-1].removeprefix("0x"), step.depth + 1)
    moves = step.op in ("CALL", "CALLCODE")
    value = "0x" + stack[_VALUE].removeprefix("0x") if moves else "0x0"
    return _Frame(step.op, caller, _address(stack[_ADDRESS]), value, step.depth + 1)


def _address(word: str) -> str:
    return "0x" + word.removeprefix("0x").zfill(_ADDRESS_DIGITS)[-_ADDRESS_DIGITS:]
