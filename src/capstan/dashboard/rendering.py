"""Turns templates and values into pages.

Called by the desk. Every value is escaped by the template engine. There is no inline style or script in any template,
because pages are served under a Content-Security-Policy that forbids both.
"""

import functools
import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from capstan.core.clock import Clock, iso, utc
from capstan.core.decimals import format_units
from capstan.dashboard.charts import bars, line

_HERE = Path(__file__).parent
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_PERIODS = ((86_400, "d"), (3_600, "h"), (60, "min"))


class StaticFile:
    """One file of the dashboard, as it was when the process started."""

    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        self.media_type = _TYPES[path.suffix]
        self.version = hashlib.sha256(self.content).hexdigest()[:12]


@functools.cache
def static_files() -> dict[str, StaticFile]:
    """Every file under `static`, by its name."""
    return {path.name: StaticFile(path) for path in sorted((_HERE / "static").iterdir()) if path.suffix in _TYPES}


class Renderer:
    """Renders templates."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        for own in (browser, iso, day, number, share, compact, duration, pairs, span, usd):
            self._environment.filters[own.__name__] = own
        self._environment.filters["ago"] = self._ago
        self._environment.globals.update(asset=asset, bars=bars, line=line, compact=compact, duration=duration)

    def render(self, template: str, values: dict[str, Any]) -> str:
        """The text of one page."""
        return self._environment.get_template(template).render(values)

    def _ago(self, moment: datetime) -> str:
        """How long ago something was, in one unit."""
        seconds = int((utc(self._clock) - moment).total_seconds())
        return elapsed(seconds)


def usd(nano: int) -> str:
    """Billionths of a US dollar: `$1,234.50`, and below a cent as exactly as it is."""
    whole, rest = divmod(nano, 10**9)
    cents, finer = divmod(rest, 10**7)
    if finer and whole == 0 and cents < 10:
        return f"${format_units(nano // 1_000 * 1_000, 9)}" if nano >= 1_000 else "under $0.000001"
    return f"${whole:,}.{cents:02}" if cents else f"${whole:,}"


def span(seconds: int) -> str:
    """`3 min`: a length of time in one unit."""
    return next((f"{seconds // length} {unit}" for length, unit in _PERIODS if seconds >= length), f"{seconds} s")


def elapsed(seconds: int) -> str:
    """A time that has passed, or is to come, for people."""
    for length, unit in _PERIODS:
        if abs(seconds) >= length:
            count = f"{abs(seconds) // length} {unit}"
            return f"{count} ago" if seconds > 0 else f"in {count}"
    return "just now" if seconds >= 0 else "in a moment"


def asset(name: str) -> str:
    """The address of a static file; it changes with the file, so browsers may keep it for ever."""
    return f"/dashboard/static/{name}?v={static_files()[name].version}"


def day(moment: datetime) -> str:
    """`31 Jan 2026, 12:00 UTC`."""
    return moment.astimezone(UTC).strftime("%-d %b %Y, %H:%M UTC")


def number(value: int) -> str:
    """`1,234,567`."""
    return f"{value:,}"


def compact(value: int) -> str:
    """`1.2M`: three figures at most, for labels."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            scaled = value * 10 // size
            return (
                f"{scaled // 10}{unit}" if scaled >= 100 or scaled % 10 == 0 else f"{scaled // 10}.{scaled % 10}{unit}"
            )
    return str(value)


def duration(microseconds: int) -> str:
    """`850 µs`, `12.3 ms`, `1.2 s`."""
    if microseconds == 0:
        return "0"
    if microseconds < 1_000:
        return f"{microseconds} µs"
    if microseconds < 1_000_000:
        return _with_tenth(microseconds, 1_000, "ms")
    return _with_tenth(microseconds, 1_000_000, "s")


def pairs(values: Iterable[str]) -> list[tuple[str, str]]:
    """Choices of a selection whose values are their own texts."""
    return [(value, value) for value in values]


def _with_tenth(value: int, size: int, unit: str) -> str:
    tenths = value * 10 // size
    return f"{tenths // 10} {unit}" if tenths >= 1_000 or tenths % 10 == 0 else f"{tenths // 10}.{tenths % 10} {unit}"


def share(part: int, whole: int) -> str:
    """`12.3 %`; nothing to tell when there is nothing to divide by."""
    return "n/a" if whole <= 0 else f"{100 * part / whole:.1f} %"


def browser(agent: str) -> str:
    """The browser and system of a User-Agent header, as well as can be told; `unknown` for anything else."""
    names = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"))
    systems = (
        *(("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows")),
        *(("Mac OS X", "macOS"), ("Linux", "Linux")),
    )
    name = next((shown for mark, shown in names if mark in agent), "")
    system = next((shown for mark, shown in systems if mark in agent), "")
    return f"{name} on {system}" if name and system else name or "unknown"
