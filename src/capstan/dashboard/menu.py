"""The menu of the dashboard: which pages there are, in which order, and who sees them.

Page modules declare their entry; `router` puts them together; the desk asks for those of a visitor.
"""

from collections.abc import Sequence

import msgspec

from capstan.dashboard.visitors import Visitor


class Entry(msgspec.Struct, frozen=True):
    """One line of the menu. `icon` is the name of a symbol in `icons.svg`."""

    title: str
    path: str
    icon: str
    section: str = ""
    operator: bool = False

    def is_at(self, path: str) -> bool:
        """Whether a page with this path belongs here."""
        return path == self.path or (self.path != "/dashboard" and path.startswith(self.path + "/"))


class Section(msgspec.Struct, frozen=True):
    """Entries that stand together."""

    title: str
    entries: tuple[Entry, ...]


class Menu:
    """All entries, in their order."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = tuple(entries)

    def entries(self, visitor: Visitor) -> tuple[Section, ...]:
        """What this visitor sees."""
        shown = [entry for entry in self._entries if visitor.user.is_operator or not entry.operator]
        titles = dict.fromkeys(entry.section for entry in shown)
        return tuple(Section(title, tuple(each for each in shown if each.section == title)) for title in titles)
