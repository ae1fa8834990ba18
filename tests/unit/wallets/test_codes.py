"""The question which addresses have code, and its answer."""

import pytest

from capstan.wallets.codes import MOST_ADDRESSES, code_answer, code_question


def test_the_program_jumps_where_it_should() -> None:
    program = code_question([])
    jumpdest, push1 = 0x5B, 0x60
    assert program[1] == len(program), "the first address stands behind the program"
    targets = [
        program[place + 1]
        for place, byte in enumerate(program[:-2])
        if byte == push1 and program[place + 2] in (0x56, 0x57)
    ]
    assert len(targets) == 2
    assert all(program[target] == jumpdest for target in targets)


def test_an_answer_has_a_byte_for_each_address() -> None:
    assert code_answer(b"\x01\x00\x01", 3) == [True, False, True]
    for wrong in (b"", b"\x01\x00", b"\x01\x00\x02"):
        with pytest.raises(ValueError, match="no list"):
            code_answer(wrong, 3)


def test_questions_are_bounded() -> None:
    assert len(code_question([bytes(20)] * MOST_ADDRESSES)) < 24_576
    with pytest.raises(ValueError, match="at most"):
        code_question([bytes(20)] * (MOST_ADDRESSES + 1))
