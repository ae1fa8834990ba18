"""Whether the logs of a block are whole, and when logs are believed that its bloom filter speaks against.

Used by the block reader alone. Pure. Some chains fill their bloom filters, or number their logs, in ways of their own;
on those, no answer ever looks whole. So answers that were refused for that reason alone are kept while one block is
read, and if two that do not depend on each other have the same content, that content is right. Nothing is concluded
for any other block.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from capstan.chain.follower.decoding import RawBlock, Unusable, missing_from
from capstan.chain.follower.models import Log


class Content(msgspec.Struct, frozen=True):
    """The logs of a block, and its receipts if the logs were taken out of them."""

    logs: tuple[Log, ...]
    receipts: tuple[Raw, ...] | None = None


class Incomplete(Unusable):
    """The answer can be read and is about the block, but its logs cannot be all, by the block's own bloom filter."""

    def __init__(self, problem: str, content: Content) -> None:
        super().__init__(problem)
        self.content = content


def whole(block: RawBlock, logs: tuple[Log, ...], receipts: tuple[Raw, ...] | None = None) -> Content:
    """The content of this block. Raises `Incomplete`."""
    content = Content(logs, receipts)
    problem = missing_from(logs, block.bloom)
    if problem is not None:
        raise Incomplete(problem, content)
    return content


class Doubts:
    """What upstreams have told of one block that does not look whole: the last answer of each to each question."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], Content] = {}

    def __bool__(self) -> bool:
        return bool(self._told)

    def add(self, upstream: str, method: str, content: Content) -> None:
        """This upstream has told this. One whose name is not known confirms nothing."""
        if upstream:
            self._told[upstream, method] = content

    def clear(self) -> None:
        """All of it is known to be wrong."""
        self._told.clear()

    def agreed(self, upstreams: int, *, receipts: bool) -> Content | None:
        """What two independent answers say, the most of it; with `receipts` only what was taken out of those.

        Where there are several upstreams, two of them must agree. A lone one must say the same in two ways, and must
        say something: one that has lost its logs has none to tell in either way.
        """
        found = [
            content
            for key, content in self._told.items()
            if (content.receipts is not None or not receipts) and self._confirmed(key, content, upstreams)
        ]
        return max(found, key=lambda content: len(content.logs), default=None)

    def _confirmed(self, key: tuple[str, str], content: Content, upstreams: int) -> bool:
        if upstreams < 2 and not content.logs:
            return False
        # The name of the upstream must be another where there are several, else the method.
        part = 0 if upstreams > 1 else 1
        substance = _substance(content.logs)
        return any(
            other[part] != key[part] and _substance(told.logs) == substance for other, told in self._told.items()
        )


class _Data(msgspec.Struct):
    data: object = None


_DATA = msgspec.json.Decoder(_Data)


def _substance(logs: Sequence[Log]) -> list[tuple[object, ...]]:
    """What must be the same in two answers; nodes differ in further members and in how they write them."""
    return [(log.index, log.address, log.topics, log.transaction_hash, _data(log)) for log in logs]


def _data(log: Log) -> object:
    data = _DATA.decode(log.raw).data
    return data.lower() if isinstance(data, str) else data
