"""The dashboard and the alert rules name metrics that exist, and the page names those that are shown."""

import json

import yaml  # type: ignore[import-untyped]  # has no types

from tests.deploy.test_files import DEPLOY, ROOT
from tests.docs.metrics import SOURCE, metrics, named_in

SERIES = {series for metric in metrics() for series in metric.series}


def test_every_metric_of_the_source_is_found() -> None:
    # A name that is put together, or a kind that is not known, would be missing in the page.
    texts = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    written = {name for text in texts if "from prometheus_client" in text for name in named_in(text)}
    strange = written - {metric.name.removesuffix("_total") for metric in metrics()} - SERIES
    assert not strange


def test_the_dashboard_asks_for_what_exists() -> None:
    dashboard = json.loads((DEPLOY / "observability" / "grafana-dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for query in queries:
        assert query.count("(") == query.count(")"), query
        assert named_in(query), query
        assert named_in(query) <= SERIES, query


def test_the_alerts_ask_for_what_exists_and_say_what_to_do() -> None:
    groups = yaml.safe_load((DEPLOY / "observability" / "alerts.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert named_in(rule["expr"]) <= SERIES, rule["expr"]
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert {"summary", "action"} <= rule["annotations"].keys()


def test_the_page_names_every_metric() -> None:
    page = (ROOT / "docs" / "reference" / "observability.md").read_text(encoding="utf-8")
    assert {metric.name for metric in metrics()} <= named_in(page)
