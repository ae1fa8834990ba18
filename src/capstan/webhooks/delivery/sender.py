"""One attempt: signs a body, sends it, and says what came back. Called by the deliverer and for test events.

The client is the guarded one: https to public addresses alone, no redirects, one time limit over the whole exchange.
Whatever a receiver does, it costs no more than that time and 64 KiB.
"""

from collections.abc import Mapping
from functools import lru_cache

from capstan.core.clock import Clock
from capstan.outbound.client import GuardedClient, OutboundLimits
from capstan.outbound.errors import OutboundError
from capstan.webhooks.delivery.models import Outcome, Target
from capstan.webhooks.retries import parse_retry_after
from capstan.webhooks.sealing import Seal, SealBroken
from capstan.webhooks.signing import delivery_headers

_MOST_READ = 65_536
_MOST_KEPT = 1_024
_MOST_SECRETS = 4_096
_MICROSECONDS = 1_000_000


class Sender:
    """Sends events."""

    def __init__(self, client: GuardedClient, seal: Seal, clock: Clock, *, seconds: float) -> None:
        self._client = client
        self._unseal = lru_cache(_MOST_SECRETS)(seal.unseal)
        self._clock = clock
        self._limits = OutboundLimits(seconds=seconds, bytes=_MOST_READ, whole=False)

    async def send(self, target: Target, event_id: str, body: bytes) -> Outcome:
        """Make one attempt. Never raises for anything a receiver does."""
        now, started = self._clock.now(), self._clock.monotonic()
        at = int(now * _MICROSECONDS)
        try:
            secrets = self._secrets(target, at)
            headers = delivery_headers(target.kind.format, target.kind.name, event_id, body, secrets, int(now))
            answer = await self._client.fetch("POST", target.url, limits=self._limits, headers=headers, body=body)
        except (OutboundError, SealBroken) as error:
            return Outcome(None, self._since(started), at, error=str(error))
        retry_after = parse_retry_after(_header(answer.headers, "retry-after"), now)
        return Outcome(
            answer.status, self._since(started), at, response=answer.body[:_MOST_KEPT], retry_after=retry_after
        )

    def _secrets(self, target: Target, now: int) -> list[str]:
        found = [self._unseal(target.secret, target.webhook_id)]
        if target.previous_secret is not None and (target.previous_until or 0) > now:
            found.append(self._unseal(target.previous_secret, target.webhook_id))
        return found

    def _since(self, started: float) -> int:
        return int((self._clock.monotonic() - started) * 1000)


def _header(headers: Mapping[str, str], name: str) -> str | None:
    return next((value for key, value in headers.items() if key.lower() == name), None)
