"""Notices of changed metadata: what is read of them, and that a block full of them stays cheap."""

import pytest

from capstan.index import events
from capstan.index.events import NodeLog, notice_in
from capstan.index.models import Notice, NoticeKind
from capstan.index.notices import condensed
from tests.support.index_chain import word

ONE, TWO = b"\x01" * 20, b"\x02" * 20
MOST = 2**256 - 1


def log(*topics: str, data: str = "") -> NodeLog:
    return NodeLog("0x" + ONE.hex(), topics, "0x" + data, "0x1", "0x" + "00" * 32, "0x" + "00" * 32, "0x0")


@pytest.mark.parametrize(
    ("emitted", "notice"),
    [
        (log(events.METADATA_UPDATE, data=word(7)), Notice(ONE, 7, 7)),
        (log(events.METADATA_UPDATE, "0x" + word(7)), Notice(ONE, 7, 7)),
        (log(events.BATCH_METADATA_UPDATE, data=word(1) + word(MOST)), Notice(ONE, 1, MOST)),
        (log(events.URI, "0x" + word(5), data=word(32) + word(0)), Notice(ONE, 5, 5)),
        (log(events.CONTRACT_URI_UPDATED), Notice(ONE, kind=NoticeKind.COLLECTION)),
        (log(events.UPGRADED, "0x" + word(9)), Notice(ONE, kind=NoticeKind.CODE)),
        # From before ERC-1967, the argument was not indexed.
        (log(events.UPGRADED, data=word(9)), Notice(ONE, kind=NoticeKind.CODE)),
        (log(events.BEACON_UPGRADED, "0x" + word(9)), Notice(ONE, kind=NoticeKind.CODE)),
        (log(events.TRANSFER), None),
        (log(), None),
    ],
)
def test_which_events_are_notices(emitted: NodeLog, notice: Notice | None) -> None:
    assert notice_in(emitted) == notice


def test_ranges_that_touch_become_one() -> None:
    said = [Notice(ONE, 5, 7), Notice(ONE, 1, 2), Notice(ONE, 3, 3), Notice(TWO, 4, 4), Notice(ONE, 6, 6)]
    assert condensed(said) == [Notice(ONE, 1, 3), Notice(ONE, 5, 7), Notice(TWO, 4, 4)]


def test_thousands_of_notices_become_one_that_holds_them_all() -> None:
    assert condensed([Notice(ONE, 3 * number, 3 * number) for number in range(5_000)]) == [Notice(ONE, 0, 14_997)]


def test_upgrade_says_everything() -> None:
    upgrade, collection = Notice(ONE, kind=NoticeKind.CODE), Notice(ONE, kind=NoticeKind.COLLECTION)
    assert condensed([Notice(ONE, 1, 2), upgrade, collection]) == [upgrade]
    assert condensed([Notice(ONE, 1, 2), collection, collection]) == [collection, Notice(ONE, 1, 2)]
    assert condensed([]) == []
