"""What is learned about the state that operations of one kind need."""

from capstan.bundler.validation.needs import Lessons, Needs
from capstan.core.hexes import keccak256

_FIRST, _SECOND = b"\x01" * 20, b"\x02" * 20
_ENTRY_POINT, _TOKEN = b"\xee" * 20, b"\x70" * 20
_KIND = (_ENTRY_POINT, b"", b"")


def _word(value: int | bytes) -> bytes:
    return value.to_bytes(32, "big") if isinstance(value, int) else value.rjust(32, b"\0")


def _plus(slot: bytes, offset: int) -> bytes:
    return (int.from_bytes(slot, "big") + offset).to_bytes(32, "big")


def _inputs(sender: bytes) -> list[bytes]:
    """What is hashed: a balance by owner, and a nonce by owner and lane."""
    balance = _word(sender) + _word(0)
    lane = _word(sender) + _word(1)
    return [balance, lane, _word(7) + keccak256(lane)]


def _needed(sender: bytes) -> Needs:
    balance, _, nonce = (keccak256(each) for each in _inputs(sender))
    needs = Needs()
    needs.add(
        [sender, _TOKEN],
        {
            _ENTRY_POINT: [balance, _plus(balance, 1), nonce, _word(2)],
            _TOKEN: [_word(sender)],
            sender: [_word(0)],
        },
    )
    return needs


def test_nothing_is_recalled_of_what_was_never_seen() -> None:
    needs = Needs()
    assert not Lessons().recall(_KIND, _FIRST, needs)
    assert (needs.accounts, needs.slots) == (set(), {})


def test_slots_that_follow_from_the_sender_are_computed_for_another() -> None:
    lessons = Lessons()
    lessons.learn(_KIND, _FIRST, _needed(_FIRST), _inputs(_FIRST))
    recalled, expected = Needs(), _needed(_SECOND)
    assert lessons.recall(_KIND, _SECOND, recalled)
    # The sender's own account and storage are not foreseen by what another one used.
    del expected.slots[_SECOND]
    expected.accounts.discard(_SECOND)
    assert (recalled.accounts, recalled.slots) == (expected.accounts, expected.slots)


def test_other_kinds_teach_nothing() -> None:
    lessons = Lessons()
    lessons.learn(_KIND, _FIRST, _needed(_FIRST), _inputs(_FIRST))
    assert not lessons.recall((_ENTRY_POINT, b"\xfa" * 20, b""), _FIRST, Needs())


def test_the_kind_not_seen_for_longest_is_forgotten() -> None:
    lessons = Lessons()
    for number in range(2049):
        lessons.learn((_word(number),), _FIRST, _needed(_FIRST), ())
    assert not lessons.recall((_word(0),), _FIRST, Needs())
    assert lessons.recall((_word(1),), _FIRST, Needs())
