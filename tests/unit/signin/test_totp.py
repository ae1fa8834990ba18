"""Codes of a second factor, against the values of RFC 6238, appendix B."""

import base64

import pytest

from capstan.signin.totp import code_at, enrolment_uri, matching_step, new_totp_secret

SECRET = base64.b32encode(b"12345678901234567890").decode()


# The standard shows eight digits; six are their end.
@pytest.mark.parametrize(
    ("moment", "code"),
    [
        (59, "287082"),
        (1111111109, "081804"),
        (1111111111, "050471"),
        (1234567890, "005924"),
        (2000000000, "279037"),
        (20000000000, "353130"),
    ],
)
def test_codes_are_those_of_the_standard(moment: int, code: str) -> None:
    assert code_at(SECRET, moment // 30) == code
    assert matching_step(SECRET, f" {code[:3]} {code[3:]} ", moment, after=0) == moment // 30


def test_a_clock_may_be_one_step_off_and_no_more() -> None:
    now = 1_700_000_000
    step = now // 30
    found = [matching_step(SECRET, code_at(SECRET, step + off), now, after=0) for off in (-2, -1, 0, 1, 2)]
    assert found == [None, step - 1, step, step + 1, None]


def test_a_step_that_was_used_does_not_count_again() -> None:
    now = 1_700_000_000
    step = now // 30
    assert matching_step(SECRET, code_at(SECRET, step), now, after=step) is None
    assert matching_step(SECRET, code_at(SECRET, step), now, after=step - 1) == step


@pytest.mark.parametrize("code", ["", "12345", "abcdef", "1234567", "١٢٣٤٥٦"])
def test_anything_else_is_no_code(code: str) -> None:
    assert matching_step(SECRET, code, 1_700_000_000, after=0) is None


def test_secrets_are_fresh_and_fit_for_an_app() -> None:
    one, two = new_totp_secret(), new_totp_secret()
    assert one != two
    assert len(base64.b32decode(one)) == 20
    uri = enrolment_uri(one, "a+b@example.com")
    assert uri.startswith("otpauth://totp/Capstan:a%2Bb%40example.com?secret=" + one)
