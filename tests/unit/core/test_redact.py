"""Secrets are taken out of text."""

from capstan.access.secrets import new_secret
from capstan.core.redact import quoted, redacted


def test_keys_and_signing_secrets_disappear() -> None:
    key = new_secret("live")
    text = f"GET /v1/{key}/x whsec_YWJj+/= end"
    assert redacted(text) == "GET /v1/svc_live_[redacted]/x whsec_[redacted] end"


def test_text_without_secrets_stays_as_it_is() -> None:
    assert redacted("svc_prod_abc and svc") == "svc_prod_abc and svc"


def test_what_is_quoted_is_printable_and_short() -> None:
    assert quoted("a\x00b\nc") == "a?b?c"
    assert len(quoted("x" * 5000)) == 201
