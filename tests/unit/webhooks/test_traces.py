"""Internal transfers: what of a tree of calls moved coins, and how the tree is found in the steps of an execution."""

from collections.abc import Sequence

import msgspec

from capstan.webhooks.steps import Step, StepTrace, call_of
from capstan.webhooks.traces import Call, TracedTransaction, moving_calls

SENDER, ROUTER, FRIEND, LIBRARY, MADE = (f"0x{digit * 40}" for digit in "abcde")

# An answer of debug_traceBlockByHash with callTracer, as geth 1.16 gives it.
GETH = b"""[{"txHash": "0x01", "result": {"from": "%(a)s", "gas": "0x1", "gasUsed": "0x1", "to": "%(b)s", "input": "0x",
"calls": [
 {"from": "%(b)s", "to": "%(c)s", "value": "0x7", "type": "CALL", "gas": "0x1", "gasUsed": "0x0", "input": "0x"},
 {"from": "%(b)s", "to": "%(c)s", "value": "0x8", "type": "CALL", "error": "execution reverted", "calls": [
  {"from": "%(c)s", "to": "%(a)s", "value": "0x1", "type": "CALL"}]},
 {"from": "%(b)s", "to": "%(d)s", "type": "DELEGATECALL", "value": "0x15", "calls": [
  {"from": "%(b)s", "to": "%(e)s", "value": "0x9", "type": "CREATE2"}]},
 {"from": "%(b)s", "to": "%(c)s", "type": "STATICCALL"},
 {"from": "%(e)s", "to": "%(a)s", "type": "SELFDESTRUCT", "value": "0x3"}],
"value": "0x15", "type": "CALL"}}]""" % {
    b"a": SENDER.encode(),
    b"b": ROUTER.encode(),
    b"c": FRIEND.encode(),
    b"d": LIBRARY.encode(),
    b"e": MADE.encode(),
}


def moved(call: Call) -> list[tuple[tuple[int, ...], str, str | None, int]]:
    return [(path, each.sender, each.to, int(each.value or "0x0", 16)) for path, each in moving_calls(call)]


def test_of_a_geth_trace_only_what_moved_coins_inside_is_told() -> None:
    (traced,) = msgspec.json.decode(GETH, type=tuple[TracedTransaction, ...])
    assert moved(traced.result) == [
        ((0,), ROUTER, FRIEND, 7),
        ((2, 0), ROUTER, MADE, 9),
        ((4,), MADE, SENDER, 3),
    ]


def test_a_transaction_that_failed_moved_nothing() -> None:
    (traced,) = msgspec.json.decode(GETH, type=tuple[TracedTransaction, ...])
    assert moved(msgspec.structs.replace(traced.result, error="out of gas")) == []


def _word(text: str | int) -> str:
    return (f"{text:x}" if isinstance(text, int) else text.removeprefix("0x")).zfill(64)


def _step(op: str, depth: int, *stack: str | int) -> Step:
    """The last one is the top of the stack."""
    return Step(op, depth, tuple(_word(each) for each in stack))


def _traced(steps: Sequence[Step], *, failed: bool = False) -> Call:
    return call_of(SENDER, ROUTER, None, "0x15", StepTrace(failed, tuple(steps)))


def test_steps_tell_the_same_calls() -> None:
    steps = [
        # To an account without code: no step of its own.
        _step("CALL", 1, 0, 7, FRIEND, 99),
        _step("POP", 1, 1),
        # Reverted, with everything inside.
        _step("CALL", 1, 0, 8, FRIEND, 99),
        _step("CALL", 2, 0, 1, SENDER, 99),
        _step("REVERT", 2, 1),
        _step("POP", 1, 0),
        # Code of another, in the router's place, that creates a contract.
        _step("DELEGATECALL", 1, LIBRARY, 99),
        _step("CREATE2", 2, 5, 0, 0, 9),
        _step("CALL", 3, 0, 2, FRIEND, 99),
        _step("RETURN", 3, 1),
        _step("RETURN", 2, MADE),
        _step("STATICCALL", 1, FRIEND, 99),
        _step("STOP", 1, 1),
    ]
    call = _traced(steps)
    assert moved(call) == [
        ((0,), ROUTER, FRIEND, 7),
        ((2, 0), ROUTER, MADE, 9),
        ((2, 0, 0), MADE, FRIEND, 2),
    ]
    assert [each.type for each in call.calls] == ["CALL", "CALL", "DELEGATECALL", "STATICCALL"]
    assert moved(_traced(steps, failed=True)) == []


def test_steps_of_a_transaction_that_creates_a_contract() -> None:
    steps = (_step("CALL", 1, 0, 4, FRIEND, 99), _step("RETURN", 1, 1))
    call = call_of(SENDER, None, MADE, "0x4", StepTrace(False, steps))
    assert (call.type, moved(call)) == ("CREATE", [((0,), MADE, FRIEND, 4)])
