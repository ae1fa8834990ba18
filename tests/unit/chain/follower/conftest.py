"""What the tests of the stream share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from capstan.chain.follower.models import Block
from tests.support.stream_nodes import Made, StreamNode, World

Build = Callable[..., World]


@pytest.fixture
async def build() -> AsyncIterator[Build]:
    """Makes worlds, and closes them at the end."""
    worlds: list[World] = []

    def make(*nodes: StreamNode, **options: object) -> World:
        worlds.append(World(*nodes, **options))  # type: ignore[arg-type] # handed through
        return worlds[-1]

    yield make
    for world in worlds:
        await world.close()


def same(block: Block, made: Made) -> bool:
    """Whether the block has exactly the logs that were made."""
    assert block.logs is not None
    raws = [msgspec.json.decode(log.raw) for log in block.logs]
    return block.hash == made.hash and raws == made.logs
