"""Requests that were sent without a task: every way they can end, each told to the connection once."""

import asyncio
from typing import Any

import pytest
from msgspec import Raw

from capstan.server.sent import Sent


class Connection:
    """Notes the responses it is given."""

    def __init__(self) -> None:
        self.responses: list[bytes | None] = []

    def answered_later(self, _underway: Any, response: bytes | None) -> None:
        self.responses.append(response)


class Case:
    """A request under way."""

    def __init__(self) -> None:
        self.connection = Connection()
        self.abandoned: list[object] = []
        self.gate = asyncio.Event()
        self.failure: Exception | None = None
        self.fails_to_respond = False
        unused: Any = None
        self.sent = Sent(unused, unused, unused, unused, 0.0, unused, "client", unused, True, self)
        self.sent.connection = self.connection

    def respond(self, _sent: Sent, result: Raw) -> bytes:
        if self.fails_to_respond:
            raise RuntimeError("a mistake")
        return b"HTTP " + bytes(result)

    def regret(self, _sent: Sent) -> bytes:
        return b"HTTP 500"

    async def carry_on(self, sent: Sent) -> bytes:
        assert sent.take()
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return b"HTTP later"

    def abandon(self, sent: Sent) -> None:
        self.abandoned.append(sent)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_reply_goes_to_the_connection_once() -> None:
    case = Case()
    case.sent.answered(Raw(b"body"))
    case.sent.cancel()
    await settle()
    assert case.connection.responses == [b"HTTP body"]
    assert case.abandoned == []


async def test_what_is_carried_on_is_answered_by_its_task() -> None:
    case = Case()
    case.sent.carry_on()
    await settle()
    assert case.connection.responses == []
    case.gate.set()
    await settle()
    assert case.connection.responses == [b"HTTP later"]
    assert case.abandoned == []


async def test_a_fault_of_the_task_leaves_nobody_waiting() -> None:
    case = Case()
    case.failure = RuntimeError("a mistake")
    case.gate.set()
    case.sent.carry_on()
    await settle()
    assert case.connection.responses == [None]


async def test_a_fault_in_the_response_does_not_reach_the_upstream_that_replied() -> None:
    case = Case()
    case.fails_to_respond = True
    case.sent.answered(Raw(b"body"))
    assert case.connection.responses == [b"HTTP 500"]


@pytest.mark.parametrize("moment", ["sent", "carried on", "running"])
async def test_a_stop_ends_it_at_any_moment(moment: str) -> None:
    case = Case()
    if moment != "sent":
        case.sent.carry_on()
    if moment == "running":
        await settle()
    case.sent.cancel(msg="the time is over")
    assert case.connection.responses == [], "whoever cancels goes through all requests"
    await settle()
    assert case.connection.responses == [None]
    # A task that ran saw to the errand itself.
    assert case.abandoned == ([] if moment == "running" else [case.sent])


async def test_nothing_refers_back_to_it_when_it_is_over() -> None:
    case = Case()
    case.sent.answered(Raw(b"body"))
    assert not case.sent.open
    assert case.sent.connection is None
