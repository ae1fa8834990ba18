"""Charts as SVG, made on the server: bars of counts and lines of latencies over time.

Called from templates. Colours and fonts come from the style sheet by class, so a chart follows light and dark. The
figures are in the `title` of each bar and in the table that a page shows beside its chart.
"""

from collections.abc import Callable, Sequence

import msgspec
from markupsafe import Markup, escape

_WIDTH, _HEIGHT = 480, 150
_LEFT, _BOTTOM, _TOP = 52, 20, 8

# Writes a value of an axis for people.
Show = Callable[[int], str]


class Point(msgspec.Struct, frozen=True):
    """One place on the horizontal axis. `alert` is the part of the value that is drawn as trouble."""

    label: str
    value: int
    alert: int = 0


def ceiling(value: int) -> int:
    """The least round number (1, 2 or 5 and zeros) that is not below the value."""
    size = 1
    while True:
        for factor in (1, 2, 5):
            if factor * size >= value:
                return factor * size
        size *= 10


def bars(points: Sequence[Point], *, title: str, show: Show) -> Markup:
    """Bars. `show` writes a value for people."""
    most = ceiling(max((point.value for point in points), default=1) or 1)
    width = (_WIDTH - _LEFT) / max(len(points), 1)
    drawn = []
    for index, point in enumerate(points):
        left = _LEFT + index * width
        label = f"{point.label}: {show(point.value)}" + (f", {show(point.alert)} failed" if point.alert else "")
        drawn.append(_bar(left, width, point.value, most, "bar", label))
        if point.alert:
            drawn.append(_bar(left, width, point.alert, most, "bar alert", label))
    return _frame(drawn, points, most, title, show)


def line(points: Sequence[Point], *, title: str, show: Show) -> Markup:
    """A line with the area under it. Places without a value are left out."""
    most = ceiling(max((point.value for point in points), default=1) or 1)
    width = (_WIDTH - _LEFT) / max(len(points), 1)
    places = [
        (_LEFT + (index + 0.5) * width, _y(point.value, most)) for index, point in enumerate(points) if point.value
    ]
    if not places:
        return _frame([], points, most, title, show)
    path = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    ground = _HEIGHT - _BOTTOM
    area = f"M{places[0][0]:.1f} {ground} L{path} L{places[-1][0]:.1f} {ground} Z"
    drawn = [
        Markup('<path class="area" d="{}"/><path class="line" d="M{}"/>').format(area, path),
        *(
            Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="2.5"><title>{}</title></circle>').format(
                x, y, f"{point.label}: {show(point.value)}"
            )
            for (x, y), point in zip(places, [point for point in points if point.value], strict=True)
        ),
    ]
    return _frame(drawn, points, most, title, show)


def _bar(left: float, width: float, value: int, most: int, kind: str, label: str) -> Markup:
    top = _y(value, most)
    gap = min(2.0, width * 0.2)
    return Markup(
        '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="1.5"><title>{}</title></rect>'
    ).format(kind, left + gap / 2, top, max(width - gap, 0.5), _HEIGHT - _BOTTOM - top, label)


def _y(value: int, most: int) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / most


def _frame(drawn: Sequence[Markup], points: Sequence[Point], most: int, title: str, show: Show) -> Markup:
    scale = [Markup("")]
    for value in (0, most // 2, most) if most > 1 else (0, most):
        y = _y(value, most)
        scale.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/><text class="tick" x="{}" y="{:.1f}"'
                ' text-anchor="end">{}</text>'
            ).format(_LEFT, _WIDTH, y, y, _LEFT - 8, y + 3.5, show(value))
        )
    ends = []
    if points:
        middle = points[len(points) // 2].label
        for x, anchor, text in (
            (_LEFT, "start", points[0].label),
            ((_LEFT + _WIDTH) / 2, "middle", middle),
            (_WIDTH, "end", points[-1].label),
        ):
            ends.append(
                Markup('<text class="tick" x="{}" y="{}" text-anchor="{}">{}</text>').format(
                    x, _HEIGHT - 4, anchor, text
                )
            )
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">{}{}{}</svg>'
    ).format(_WIDTH, _HEIGHT, escape(title), Markup("").join(scale), Markup("").join(drawn), Markup("").join(ends))
