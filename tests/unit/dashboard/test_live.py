"""Parts of pages that are sent again when they change."""

import asyncio
from collections.abc import Awaitable, Callable

from capstan.core.clock import ManualClock
from capstan.dashboard.live import LiveOptions, LiveParts

SECONDS = 30


async def yes() -> bool:
    return True


def options(**further: float) -> LiveOptions:
    return LiveOptions(**{"seconds": 0.001, "life_seconds": 1e9, **further})  # type: ignore[arg-type]  # most is whole


def saying(*texts: str) -> Callable[[], Awaitable[str]]:
    """A part that reads like this, and in the end like the last of them."""
    left = list(texts)

    async def part() -> str:
        return left.pop(0) if len(left) > 1 else left[0]

    return part


async def first(parts: LiveParts, count: int, part: Callable[[], Awaitable[str]]) -> list[bytes]:
    """The first events of a stream, which is then given up."""
    found: list[bytes] = []
    stream = parts.stream(yes, part)
    async with asyncio.timeout(SECONDS):
        async for event in stream:
            found.append(event)
            if len(found) == count:
                break
    await stream.aclose()
    return found


async def test_a_part_is_sent_once_and_again_when_it_changes() -> None:
    parts = LiveParts(ManualClock(), options())
    events = await first(parts, 3, saying("<p>one</p>", "<p>one</p>", "<p>\n\ntwo</p>"))
    assert events == [
        b"retry: 1000\n\n",
        b"event: part\ndata: <p>one</p>\n\n",
        b"event: part\ndata: <p>\ndata: two</p>\n\n",
    ]
    assert parts.open == 0


async def test_a_part_that_stays_is_answered_with_signs_of_life() -> None:
    parts = LiveParts(ManualClock(), options(heartbeat_seconds=0))
    assert (await first(parts, 4, saying("same")))[2:] == [b": still here\n\n"] * 2


async def test_a_stream_ends_with_its_session() -> None:
    left = [True, True, False]

    async def allowed() -> bool:
        return left.pop(0)

    parts = LiveParts(ManualClock(), options())
    async with asyncio.timeout(SECONDS):
        events = [event async for event in parts.stream(allowed, saying("secret"))]
    assert events[-1].startswith(b"event: ended\n")
    assert len(events) == 3
    assert parts.open == 0


async def test_a_stream_does_not_last_for_ever() -> None:
    clock = ManualClock()
    parts = LiveParts(clock, options(life_seconds=60))

    async def part() -> str:
        clock.advance(31)
        return "text"

    async with asyncio.timeout(SECONDS):
        assert len([event async for event in parts.stream(yes, part)]) == 3


async def test_more_streams_than_allowed_are_told_to_come_back() -> None:
    parts = LiveParts(ManualClock(), options(most=1))
    one = parts.stream(yes, saying("text"))
    await anext(one)
    refused = [event async for event in parts.stream(yes, saying("text"))]
    assert [event.splitlines()[0] for event in refused] == [b"retry: 15000"]
    await one.aclose()
    assert len(await first(parts, 2, saying("text"))) == 2


async def test_all_streams_end_when_the_service_stops() -> None:
    parts = LiveParts(ManualClock(), options(seconds=3600))
    stream = parts.stream(yes, saying("text"))
    await anext(stream)
    await anext(stream)
    parts.stop()
    async with asyncio.timeout(SECONDS):
        assert [event async for event in stream] == []
