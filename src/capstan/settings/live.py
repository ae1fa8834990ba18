"""The settings of a running process, and their reload.

The composition root makes one `LiveSettings`; whoever depends on a reloadable setting subscribes with `on_change`. The
signal that asks for a reload is wired elsewhere. Networks, upstreams, plans and units are swapped; a change of anything
else is reported and waits for a restart.

The rule for subscribers: a callback receives the old and the new settings and either takes over the new ones whole, or
raises and has changed nothing. It runs at once, in the thread that calls `reload`, and must not wait. If one raises,
those that had already taken over are called again with the two arguments swapped, newest first, `current` stays as it
was, and `ReloadFailed` is raised. Should one of these calls raise too, the others are still made, and the error says
that the process needs a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from capstan.settings.build import build_settings
from capstan.settings.errors import ReloadFailed, dotted
from capstan.settings.layers import KeyPath, find_config, read_layers
from capstan.settings.model import RELOADABLE, Settings

Subscriber = Callable[[Settings, Settings], None]


class ReloadReport(msgspec.Struct, frozen=True):
    """What a reload did. Holds names of settings only, so it may be logged."""

    changed: tuple[str, ...]
    """The settings now in force with a new value."""
    needs_restart: tuple[str, ...]
    """The settings that differ in the sources from what this process runs with, and cannot be swapped."""


class LiveSettings:
    """Holds the settings in force. Read `current` each time; a struct kept aside goes stale."""

    def __init__(
        self,
        config_path: Path | None = None,
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> None:
        """Read all sources. Raises `SettingsError` with every problem found."""
        self._named = config_path
        self._environ = dict(environ or {})
        self._overrides = dict(overrides or {})
        self._file: Path | None = None
        self._subscribers: list[Subscriber] = []
        self._busy = threading.Lock()
        self._current = self._read()

    @property
    def current(self) -> Settings:
        """The settings in force."""
        return self._current

    @property
    def config_file(self) -> Path | None:
        """The operator's file in use, if any."""
        return self._file

    def on_change(self, callback: Subscriber) -> Callable[[], None]:
        """Call `callback(old, new)` after every reload that changed something. Returns what undoes the subscription."""
        self._subscribers.append(callback)

        def unsubscribe() -> None:
            if callback in self._subscribers:
                self._subscribers.remove(callback)

        return unsubscribe

    def reload(self) -> ReloadReport:
        """Read the same sources again and swap what can be swapped.

        Raises `SettingsError` if they are wrong and `ReloadFailed` if a subscriber refuses; the old settings then stay
        in force.
        """
        if not self._busy.acquire(blocking=False):
            raise ReloadFailed("a reload is already under way")
        try:
            return self._reload()
        finally:
            self._busy.release()

    def _reload(self) -> ReloadReport:
        fresh = self._read()
        old = self._current
        new = msgspec.structs.replace(old, **{name: getattr(fresh, name) for name in RELOADABLE})
        report = ReloadReport(changed=differences(old, new), needs_restart=differences(new, fresh))
        if report.changed:
            self._notify(old, new)
            self._current = new
        return report

    def _read(self) -> Settings:
        # A file once in use must stay: were it looked up anew, deleting it would quietly take every network away.
        path = self._file or find_config(self._named, self._environ)
        settings = build_settings(read_layers(path, self._environ, self._overrides))
        self._file = path.absolute() if path is not None else None
        return settings

    def _notify(self, old: Settings, new: Settings) -> None:
        done: list[Subscriber] = []
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(old, new)
            except Exception as error:
                stuck = _roll_back(done, old, new)
                message = f"{_name(subscriber)} refused the new settings: {error}"
                if stuck:
                    message += f"; {', '.join(stuck)} could not go back to the old ones: restart the process"
                raise ReloadFailed(message) from error
            done.append(subscriber)


def differences(one: Settings, other: Settings) -> tuple[str, ...]:
    """The dotted names of the settings in which two differ."""
    return tuple(dotted(path) for path in _differing(one, other, ()))


def _differing(one: object, other: object, path: KeyPath) -> Iterator[KeyPath]:
    if one == other:
        return
    left, right = _children(one, path), _children(other, path)
    if left is None or right is None:
        yield path
        return
    for key in dict.fromkeys((*left, *right)):
        if key in left and key in right:
            yield from _differing(left[key], right[key], (*path, key))
        else:
            yield (*path, key)


def _children(value: object, path: KeyPath) -> Mapping[str, object] | None:
    """What is inside a section; `None` for a single value, which a table such as `units.overrides` is too."""
    if isinstance(value, msgspec.Struct):
        return {field.encode_name: getattr(value, field.name) for field in msgspec.structs.fields(value)}
    if path == ("networks",) and isinstance(value, dict):
        return value
    return None


def _roll_back(done: list[Subscriber], old: Settings, new: Settings) -> list[str]:
    """Give those already told the old settings back. Returns the names of those that raised."""
    stuck = []
    for subscriber in reversed(done):
        try:
            subscriber(new, old)
        except Exception:
            stuck.append(_name(subscriber))
    return stuck


def _name(subscriber: Subscriber) -> str:
    return getattr(subscriber, "__qualname__", type(subscriber).__name__)
