"""The text of API keys."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.access.models import Mode
from capstan.access.secrets import digest, hint, new_secret, well_formed


@pytest.mark.parametrize("mode", ["live", "test"])
def test_a_new_key_has_its_prefix_and_enough_randomness(mode: Mode) -> None:
    secret = new_secret(mode)
    assert secret.startswith(f"svc_{mode}_")
    assert well_formed(secret)
    # 32 characters of base 62 are 190 bits.
    assert len(secret.removeprefix(f"svc_{mode}_")) == 38


def test_keys_do_not_repeat() -> None:
    assert len({new_secret("live") for _ in range(1000)}) == 1000


@given(position=st.integers(min_value=9, max_value=46), letter=st.sampled_from(string.ascii_letters + string.digits))
def test_a_mistyped_key_is_recognised_without_a_look_up(position: int, letter: str) -> None:
    secret = new_secret("test")
    changed = secret[:position] + letter + secret[position + 1 :]
    assert well_formed(changed) == (changed == secret)


def test_a_key_with_something_behind_it_is_not_a_key() -> None:
    assert not well_formed(new_secret("live") + "a")


@pytest.mark.parametrize("text", ["", "svc_live_", "svc_prod_" + "a" * 38, "svc_test_" + "é" * 38])
def test_other_text_is_not_a_key(text: str) -> None:
    assert not well_formed(text)


def test_a_live_key_is_no_test_key() -> None:
    assert not well_formed(new_secret("live").replace("svc_live_", "svc_test_"))


def test_digest_and_hint_do_not_reveal_the_key() -> None:
    secret = new_secret("live")
    assert len(digest(secret)) == 32
    assert secret.endswith(hint(secret))
    assert len(hint(secret)) == 4
