"""Secrets and signatures: made as documented, checked by implementations that share no code with ours."""

import base64
import stat
import time
from pathlib import Path

import msgspec
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from capstan.webhooks.identity import event_id
from capstan.webhooks.kinds import Format
from capstan.webhooks.sealing import Seal, SealBroken, new_signing_secret
from capstan.webhooks.signing import delivery_headers
from tests.support.webhooks import openssl_hmac

BODY = '{"id":"evt_1","data":{"symbol":"Ω"}}'.encode()


def test_a_secret_is_the_prefix_and_base64_of_32_bytes() -> None:
    secret = new_signing_secret()
    assert secret.startswith("whsec_")
    assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
    assert new_signing_secret() != secret


def test_format_a_is_what_openssl_computes() -> None:
    secret = new_signing_secret()
    headers = delivery_headers("A", "log", "evt_1", BODY, [secret], 1_700_000_000)
    assert headers["X-Service-Timestamp"] == "1700000000"
    assert headers["X-Service-Signature"] == openssl_hmac(secret.encode(), b"1700000000." + BODY).hex()
    assert headers["Content-Type"] == "application/json"
    assert not {name for name in headers if name.startswith(("X-Platform", "X-Webhook"))}


def test_format_b_is_what_openssl_computes() -> None:
    secret = new_signing_secret()
    headers = delivery_headers("B", "NEW_BLOCK", "evt_1", BODY, [secret], 1_700_000_000)
    assert headers["X-Platform-Signature"] == "sha256=" + openssl_hmac(secret.encode(), BODY).hex()
    assert headers["X-Webhook-Event"] == "NEW_BLOCK"
    assert headers["X-Webhook-Idempotency-Key"] == "evt_1"
    assert not {name for name in headers if name.startswith("X-Service")}


def test_standard_webhooks_is_what_openssl_computes() -> None:
    secret = new_signing_secret()
    headers = delivery_headers("A", "log", "evt_1", BODY, [secret], 1_700_000_000)
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = openssl_hmac(key, b"evt_1.1700000000." + BODY)
    assert headers["webhook-id"] == "evt_1"
    assert headers["webhook-timestamp"] == "1700000000"
    assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()


@pytest.mark.parametrize("form", ["A", "B"])
def test_the_package_of_standard_webhooks_takes_what_we_sign_and_nothing_else(form: Format) -> None:
    new, old, other = (new_signing_secret() for _ in range(3))
    headers = delivery_headers(form, "log", "evt_1", BODY, [new, old], int(time.time()))
    for secret in (new, old):
        assert Webhook(secret).verify(BODY, headers) == msgspec.json.decode(BODY)
    for secret, body in ((other, BODY), (new, BODY + b" ")):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body, headers)
    late = delivery_headers(form, "log", "evt_1", BODY, [new], int(time.time()) - 400)
    with pytest.raises(WebhookVerificationError):
        Webhook(new).verify(BODY, late)


def test_during_a_rotation_both_secrets_sign() -> None:
    new, old = new_signing_secret(), new_signing_secret()
    headers = delivery_headers("B", "NEW_BLOCK", "evt_1", BODY, [new, old], 1_700_000_000)
    assert headers["X-Platform-Signature"] == "sha256=" + openssl_hmac(new.encode(), BODY).hex()
    assert headers["X-Platform-Signature-Previous"] == "sha256=" + openssl_hmac(old.encode(), BODY).hex()
    assert len(headers["webhook-signature"].split(" ")) == 2


def test_a_stored_secret_can_be_read_with_the_same_key_by_its_owner_alone(tmp_path: Path) -> None:
    seal = Seal.open("", tmp_path / "data")
    sealed = seal.seal("whsec_x", "wh_1")
    assert b"whsec_x" not in sealed
    assert Seal.open("", tmp_path / "data").unseal(sealed, "wh_1") == "whsec_x"
    for other in (Seal.open("", tmp_path / "other"), Seal.open("a key", tmp_path / "data")):
        with pytest.raises(SealBroken):
            other.unseal(sealed, "wh_1")
    with pytest.raises(SealBroken):
        seal.unseal(sealed, "wh_2")
    with pytest.raises(SealBroken):
        seal.unseal(sealed[:-1] + bytes([sealed[-1] ^ 1]), "wh_1")


def test_the_key_is_that_of_the_settings_when_one_is_set(tmp_path: Path) -> None:
    sealed = Seal.open("a key", tmp_path).seal("whsec_x", "wh_1")
    assert Seal.open("a key", tmp_path / "elsewhere").unseal(sealed, "wh_1") == "whsec_x"
    assert list(tmp_path.iterdir()) == []


def test_only_the_owner_of_the_process_can_read_the_key_file(tmp_path: Path) -> None:
    Seal.open("", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["webhooks.key"]
    assert stat.S_IMODE((tmp_path / "webhooks.key").stat().st_mode) == 0o600


def test_ids_are_the_same_for_the_same_event_and_different_for_any_other() -> None:
    made = ("wh_1", "ethereum/devnet", "0xab", "log:1:0", 0)
    assert event_id(*made) == event_id(*made)
    assert event_id(*made).startswith("evt_")
    assert len(event_id(*made)) == 26
    others = [
        ("wh_2", "ethereum/devnet", "0xab", "log:1:0", 0),
        ("wh_1", "ethereum/mainnet", "0xab", "log:1:0", 0),
        ("wh_1", "ethereum/devnet", "0xac", "log:1:0", 0),
        ("wh_1", "ethereum/devnet", "0xab", "log:1:1", 0),
        ("wh_1", "ethereum/devnet", "0xab", "log:1:0", 1),
    ]
    assert len({event_id(*each) for each in [made, *others]}) == 6
