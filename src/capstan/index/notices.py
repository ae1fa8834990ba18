"""Puts the notices of one block together, so that a block full of them costs no more than a few. Pure.

Called by the stream consumer. Anybody can emit thousands of notices in a block for little; each would be a statement
and a look through the memory of documents. Of one contract at most a few ranges of ids are left. Where there are more,
one range stands for all: a document that is fetched again in vain does no harm, one that is not fetched does.
"""

from collections import defaultdict
from collections.abc import Iterable

from capstan.index.models import Notice, NoticeKind

_MOST_RANGES = 16


def condensed(notices: Iterable[Notice]) -> list[Notice]:
    """Notices that say the same, or a little more, and are few."""
    kinds: dict[bytes, set[NoticeKind]] = defaultdict(set)
    spans: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for notice in notices:
        kinds[notice.contract].add(notice.kind)
        if notice.kind is NoticeKind.IDS:
            spans[notice.contract].append((notice.first, notice.last))
    found: list[Notice] = []
    for contract, said in kinds.items():
        if NoticeKind.CODE in said:
            # Whatever else it says is part of that.
            found.append(Notice(contract, kind=NoticeKind.CODE))
            continue
        if NoticeKind.COLLECTION in said:
            found.append(Notice(contract, kind=NoticeKind.COLLECTION))
        found += [Notice(contract, first, last) for first, last in _joined(spans[contract])]
    return found


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined if len(joined) <= _MOST_RANGES else [(joined[0][0], joined[-1][1])]
