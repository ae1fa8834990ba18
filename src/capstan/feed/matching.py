"""Finds the subscriptions that want a log, without looking at those that do not.

The hub of each network has one index. It is a tree with a level for the address and one for each topic: a log walks
down the branch of its own value and the branch of "any" on every level, so its cost depends on what matches and not on
how many filters there are. A filter that lists alternatives stands in several places; one that would stand in too many
is kept at "any" on its longest list and is looked at again at the end.
"""

from collections.abc import Iterator
from itertools import product
from typing import Generic, TypeVar

from capstan.feed.filters import LogFilter

Subscriber = TypeVar("Subscriber")

# Places that one filter may take.
_MOST_PLACES = 4_096

Path = tuple[str | None, ...]


class _Node(Generic[Subscriber]):
    """A place in the tree. `sure` ends a path that says all; `unsure` one whose filter must be asked again."""

    __slots__ = ("any", "children", "sure", "unsure")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Subscriber]] = {}
        self.any: _Node[Subscriber] | None = None
        self.sure: dict[Subscriber, None] = {}
        self.unsure: dict[Subscriber, LogFilter] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.any or self.sure or self.unsure)


class LogIndex(Generic[Subscriber]):
    """Subscribers by the logs that they want."""

    def __init__(self) -> None:
        self._root: _Node[Subscriber] = _Node()
        self._filters: dict[Subscriber, LogFilter] = {}

    def __len__(self) -> int:
        return len(self._filters)

    def __iter__(self) -> Iterator[Subscriber]:
        return iter(self._filters)

    def add(self, subscriber: Subscriber, wanted: LogFilter) -> None:
        """Add a subscriber that is not in the index."""
        if subscriber in self._filters:
            raise ValueError("the subscriber has a filter already")
        self._filters[subscriber] = wanted
        paths, complete = _paths(wanted)
        for path in paths:
            node = self._root
            for value in path:
                node = _child(node, value)
            if complete:
                node.sure[subscriber] = None
            else:
                node.unsure[subscriber] = wanted

    def remove(self, subscriber: Subscriber) -> None:
        """Remove a subscriber, if it is there."""
        wanted = self._filters.pop(subscriber, None)
        if wanted is not None:
            for path in _paths(wanted)[0]:
                _prune(self._root, path, subscriber)

    def match(self, address: str, topics: tuple[str, ...]) -> list[Subscriber]:
        """Those who want a log with this address and these topics, each once."""
        nodes = [self._root]
        found: list[Subscriber] = []
        for value in (address, *topics):
            following: list[_Node[Subscriber]] = []
            for node in nodes:
                child = node.children.get(value)
                if child is not None:
                    following.append(child)
                if node.any is not None:
                    following.append(node.any)
            if not following:
                break
            for node in following:
                if node.sure:
                    found += node.sure
                if node.unsure:
                    found += [who for who, wanted in node.unsure.items() if wanted.matches(address, topics)]
            nodes = following
        return found


def _paths(wanted: LogFilter) -> tuple[list[Path], bool]:
    """Where a filter stands, and whether that says all about it."""
    levels: list[frozenset[str] | None] = [wanted.addresses, *wanted.topics]
    complete = True
    while _places(levels) > _MOST_PLACES:
        longest = max(range(len(levels)), key=lambda level: len(levels[level] or ()))
        levels[longest] = None
        complete = False
    return list(product(*((None,) if level is None else tuple(level) for level in levels))), complete


def _places(levels: list[frozenset[str] | None]) -> int:
    count = 1
    for level in levels:
        count *= len(level) if level is not None else 1
    return count


def _child(node: _Node[Subscriber], value: str | None) -> _Node[Subscriber]:
    if value is None:
        if node.any is None:
            node.any = _Node()
        return node.any
    child = node.children.get(value)
    if child is None:
        child = node.children[value] = _Node()
    return child


def _prune(root: _Node[Subscriber], path: Path, subscriber: Subscriber) -> None:
    """Take a subscriber out of one place, and the branches away that then lead nowhere."""
    way = [root]
    for value in path:
        following = way[-1].any if value is None else way[-1].children.get(value)
        if following is None:
            return
        way.append(following)
    way[-1].sure.pop(subscriber, None)
    way[-1].unsure.pop(subscriber, None)
    for value, parent, child in zip(reversed(path), reversed(way[:-1]), reversed(way[1:]), strict=True):
        if not child.is_empty:
            return
        if value is None:
            parent.any = None
        else:
            del parent.children[value]
