"""What delivery works on: lanes with the events that are due, and what came of each attempt. Plain values."""

import msgspec

from capstan.webhooks.kinds import EventType


class Target(msgspec.Struct, frozen=True):
    """Where the events of a webhook go, and with what they are signed."""

    webhook_id: str
    account_id: str
    network: str
    kind: EventType
    url: str
    secret: bytes
    previous_secret: bytes | None
    previous_until: int | None


class DueEvent(msgspec.Struct, frozen=True):
    """An event that is to be sent."""

    seq: int
    id: str
    body: bytes
    needs: str | None
    retries: int
    attempts: int


class Lane(msgspec.Struct, frozen=True):
    """The events of one webhook that are due, claimed by this process."""

    target: Target
    token: int
    events: tuple[DueEvent, ...]


class Outcome(msgspec.Struct, frozen=True):
    """What an attempt brought. Times are UTC microseconds."""

    status: int | None
    latency_ms: int
    at: int
    error: str | None = None
    response: bytes | None = None
    retry_after: float | None = None

    @property
    def accepted(self) -> bool:
        """Whether the receiver acknowledged it."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        """Whether the receiver wants nothing any more."""
        return self.status == 410


class Result(msgspec.Struct, frozen=True):
    """What is to be written about one attempt."""

    target: Target
    event: DueEvent
    outcome: Outcome
    # The state of the event now, when it is due again, and how many retries that makes.
    state: str
    due_at: int
    retries: int
    # The webhook is to be paused (retries exhausted) or disabled (410), or left as it is.
    webhook_status: str | None = None


class Release(msgspec.Struct, frozen=True):
    """A lane that was worked off."""

    webhook_id: str
    token: int
    # It is not looked at before this moment.
    hold_until: int = 0
