"""The headers of a delivery, with the signatures of its format and those of Standard Webhooks.

Called by delivery for every attempt, with the exact bytes of the body. The key of the format's own signature is the
whole secret as text, prefix included; that of Standard Webhooks is the decoded part behind the prefix. While a secret
is being rotated there are two: the new one signs the format's header, the old one a second header beside it. Pure.
"""

import base64
import hmac
from collections.abc import Sequence

from capstan.webhooks.kinds import Format
from capstan.webhooks.sealing import PREFIX

_CONTENT = {"Content-Type": "application/json", "User-Agent": "Capstan-Webhooks"}


def delivery_headers(
    form: Format, event_type: str, event_id: str, body: bytes, secrets: Sequence[str], timestamp: int
) -> dict[str, str]:
    """All headers of one attempt. `secrets` are those that count now, the newest first."""
    headers = {
        **_CONTENT,
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(standard_signature(secret, event_id, timestamp, body) for secret in secrets),
    }
    if form == "A":
        headers["X-Service-Timestamp"] = str(timestamp)
        content, name, prefix = b"%d.%b" % (timestamp, body), "X-Service-Signature", ""
    else:
        headers["X-Webhook-Event"] = event_type
        headers["X-Webhook-Idempotency-Key"] = event_id
        content, name, prefix = body, "X-Platform-Signature", "sha256="
    for secret, suffix in zip(secrets, ("", "-Previous"), strict=False):
        headers[name + suffix] = prefix + hmac.digest(secret.encode(), content, "sha256").hex()
    return headers


def standard_signature(secret: str, event_id: str, timestamp: int, body: bytes) -> str:
    """One signature of Standard Webhooks: `v1,` and base64."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    digest = hmac.digest(key, b"%b.%d.%b" % (event_id.encode(), timestamp, body), "sha256")
    return "v1," + base64.b64encode(digest).decode()
