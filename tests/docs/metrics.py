"""Every metric of the service, read from its source: name, kind, labels and what it says of itself.

Used to write the reference page, and by the tests that hold the page, the dashboard and the alert rules against it. A
metric is made by a call whose first two arguments are its name and its text, both written out.
"""

import ast
import re
from functools import cache
from pathlib import Path

import msgspec

SOURCE = Path(__file__).resolve().parents[2] / "src" / "capstan"
_KINDS = {"counter": "counter", "gauge": "gauge", "histogram": "histogram"}
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
_NAME = re.compile(r"\bcapstan_[a-z0-9_]+")


class Metric(msgspec.Struct, frozen=True):
    """One metric. `name` is as it is shown: that of a counter ends with _total."""

    name: str
    kind: str
    text: str

    @property
    def series(self) -> list[str]:
        """The names that a query can use."""
        base = self.name.removesuffix("_total") if self.kind == "counter" else self.name
        return [base + suffix for suffix in _SUFFIXES[self.kind]]


@cache
def metrics() -> list[Metric]:
    """All of them, by name."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text if named_in(text) else "")):
            if isinstance(node, ast.Call) and (metric := _metric(node)) is not None:
                found[metric.name] = metric
    return [found[name] for name in sorted(found)]


def named_in(text: str) -> set[str]:
    """The names of metrics in a text, such as a query."""
    return set(_NAME.findall(text))


def _metric(call: ast.Call) -> Metric | None:
    maker = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    kind = _KINDS.get(maker.lower().removesuffix("metricfamily"))
    texts = [each.value for each in call.args[:2] if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    if kind is None or len(texts) != 2 or not texts[0].startswith("capstan_"):
        return None
    return Metric(texts[0] + ("_total" if kind == "counter" else ""), kind, texts[1])
