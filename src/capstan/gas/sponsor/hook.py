"""Asks the decision hook of a policy, once its rules allow an operation and before money is reserved.

Called by the sponsor service. The request is signed as our webhooks are, so that the receiver can tell it from others'.
It goes through the client that reaches no private addresses. An answer that does not come, or is not one, counts as
what the policy says for that case.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import structlog

from capstan.core.clock import Clock, iso, utc
from capstan.core.errors import InvalidRequest
from capstan.core.ids import new_id
from capstan.gas.policies.models import DecisionHook, Policy
from capstan.gas.sponsor.judging import Refused
from capstan.outbound.client import GuardedClient, OutboundLimits
from capstan.outbound.errors import OutboundError

log = structlog.get_logger(__name__)

_MOST_BYTES = 16_384
_LONGEST_REASON = 200


class _Answer(msgspec.Struct, frozen=True):
    sponsor: bool
    reason: str = ""


class DecisionHooks:
    """Asks hooks of any policy."""

    def __init__(self, client: GuardedClient, clock: Clock, secret: Callable[[str], str]) -> None:
        self._client = client
        self._clock = clock
        self._secret = secret

    def check(self, hook: DecisionHook) -> None:
        """Raise `InvalidRequest` for an address that is never asked."""
        try:
            self._client.check(hook.url)
        except OutboundError as error:
            raise InvalidRequest(f"decision_hook.url: {error}") from None

    async def ask(self, policy: Policy, question: Callable[[], Mapping[str, Any]]) -> None:
        """Raise `Refused` when the hook of the policy does not want it; a policy without one wants everything.

        `question` is put together only when there is somebody to ask.
        """
        hook = policy.hook
        if hook is None:
            return
        try:
            answer = await self._exchange(policy, hook, question())
        except (OutboundError, msgspec.DecodeError, ValueError) as error:
            log.warning("gas.hook_failed", policy=policy.id, on_failure=hook.on_failure, reason=str(error)[:200])
            if hook.on_failure == "sponsor":
                return
            raise Refused("decision_hook", "the hook did not answer as it should, and is set to refuse then") from None
        if not answer.sponsor:
            reason = "".join(each for each in answer.reason if each.isprintable())[:_LONGEST_REASON]
            raise Refused("decision_hook", reason or "the hook refused")

    async def _exchange(self, policy: Policy, hook: DecisionHook, question: Mapping[str, Any]) -> _Answer:
        identifier = new_id("evt")
        body = msgspec.json.encode(
            {
                "id": identifier,
                "event_type": "sponsorship_requested",
                "created_at": iso(utc(self._clock)),
                "data": {"policy_id": policy.id, **question},
            }
        )
        found = await self._client.fetch(
            "POST",
            hook.url,
            limits=OutboundLimits(seconds=hook.timeout_seconds, bytes=_MOST_BYTES),
            headers=signed_headers(self._secret(policy.id), identifier, int(self._clock.now()), body),
            body=body,
        )
        if not 200 <= found.status < 300:
            raise ValueError(f"status {found.status}")
        return msgspec.json.decode(found.body, type=_Answer)


def signed_headers(secret: str, identifier: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a signed request: ours, and those of Standard Webhooks."""
    ours = hmac.digest(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hex()
    key = base64.b64decode(secret.removeprefix("whsec_"))
    standard = hmac.digest(key, f"{identifier}.{timestamp}.".encode() + body, hashlib.sha256)
    return {
        "Content-Type": "application/json",
        "X-Service-Signature": ours,
        "X-Service-Timestamp": str(timestamp),
        "webhook-id": identifier,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": "v1," + base64.b64encode(standard).decode(),
    }
