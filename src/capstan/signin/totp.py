"""Codes of a second factor: RFC 6238 with SHA-1, six digits and steps of 30 seconds, as all the apps know them.

Called by the sign-in service. Pure: the time is handed in. That no code counts twice is the store's business, which
remembers the last step used.
"""

import base64
import hmac
import secrets
import struct
from urllib.parse import quote

STEP_SECONDS = 30
_DIGITS = 6
_SECRET_BYTES = 20
# How many steps a clock may be off, in either direction.
_DRIFT = 1


def new_totp_secret() -> str:
    """A fresh secret, in base 32 as the apps take it."""
    return base64.b32encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def code_at(secret: str, step: int) -> str:
    """The code of one step (RFC 4226, section 5.3)."""
    digest = hmac.digest(base64.b32decode(secret), struct.pack(">Q", step), "sha1")
    offset = digest[-1] & 0x0F
    number = int.from_bytes(digest[offset : offset + 4], "big") & 0x7FFF_FFFF
    return f"{number % 10**_DIGITS:0{_DIGITS}}"


def matching_step(secret: str, code: str, now: float, *, after: int) -> int | None:
    """The step that a code belongs to, later than `after` and near the present; None for a code that does not count."""
    cleaned = "".join(code.split())
    present, found = int(now) // STEP_SECONDS, None
    for step in range(present - _DRIFT, present + _DRIFT + 1):
        # Every step is compared, so that the time taken says nothing.
        if hmac.compare_digest(code_at(secret, step).encode(), cleaned.encode()) and step > after:
            found = step
    return found


def enrolment_uri(secret: str, email: str) -> str:
    """The address that an app reads from a link or a QR code."""
    return (
        f"otpauth://totp/Capstan:{quote(email)}?secret={secret}&issuer=Capstan&digits={_DIGITS}&period={STEP_SECONDS}"
    )
