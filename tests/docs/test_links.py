"""Links lead somewhere, every page can be found, and pages keep their form."""

from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, page_names, parse, read_page

WIDEST = 120


def broken_links(name: str) -> list[str]:
    """The relative links of a page that lead nowhere."""
    page = read_page(name)
    broken = []
    for line, target in page.links:
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        found = (ROOT / name).parent / path if path else ROOT / name
        if not found.exists():
            broken.append(f"{name}:{line}: {target}: there is no such file")
        elif anchor and anchor not in read_page(str(found.resolve().relative_to(ROOT))).anchors:
            broken.append(f"{name}:{line}: {target}: there is no such heading")
    return broken


@pytest.mark.parametrize("name", page_names())
def test_links_lead_somewhere(name: str) -> None:
    """Files and headings; other servers are not asked."""
    assert not broken_links(name)


def test_every_page_is_in_the_index() -> None:
    """A page that nothing links to is not read."""
    linked = {(ROOT / "docs" / target).resolve() for _, target in read_page("docs/README.md").links}
    pages = {(ROOT / name).resolve() for name in page_names() if name.startswith("docs/") and name != "docs/README.md"}
    assert not pages - linked


@pytest.mark.parametrize("name", page_names())
def test_page_has_one_title_and_lines_that_fit(name: str) -> None:
    """Tables, blocks and links cannot be wrapped; other lines can. Generated pages have their own writers."""
    page = read_page(name)
    assert len(page.titles) == 1
    wide = [
        number
        for number, line in enumerate(page.prose.splitlines(), start=1)
        if len(line) > WIDEST and not line.startswith("|") and "Generated from" not in page.text
    ]
    assert not wide, f"{name}: lines {wide} are over {WIDEST} characters"


@pytest.mark.parametrize("name", page_names())
def test_paths_named_in_a_page_exist(name: str) -> None:
    """What looks like a file or directory of the repository is one."""
    roots = ("src/", "tests/", "contracts/", "docs/", "bench/", "tools/", ".ci/")
    named = [(line, code) for line, code in read_page(name).inline_code if code.startswith(roots) and " " not in code]
    missing = [(line, code) for line, code in named if not (ROOT / code).exists()]
    assert not missing


def test_decisions_are_numbered_and_complete() -> None:
    """No gap, and each says why, what and with what consequences."""
    records = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(path.name[:4]) for path in records] == list(range(1, len(records) + 1))
    for path in records:
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {path.name[:4]}: ")
        assert all(part in text for part in ("**Context.**", "**Decision.**", "**Consequences.**")), path.name


def test_anchors_follow_the_rules_of_github() -> None:
    """Code, punctuation, and a heading that occurs twice."""
    page = parse(
        "x.md", "# `plans.free`\n\n## What's new? (2)\n\n## Twice\n\n## Twice\n\n```sh\n# not a heading\n```\n"
    )
    assert page.anchors == {"plansfree", "whats-new-2", "twice", "twice-1"}


def test_broken_links_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search itself; a link inside code is not one."""
    (tmp_path / "a.md").write_text("# A\n\n[b](b.md) [c](c.md) [d](b.md#nowhere) [e](b.md#b) `[f](f.md)`\n")
    (tmp_path / "b.md").write_text("# B\n")
    monkeypatch.setattr("tests.docs.test_links.ROOT", tmp_path)
    monkeypatch.setattr("tests.docs.markdown.ROOT", tmp_path)
    read_page.cache_clear()
    try:
        found = broken_links("a.md")
    finally:
        read_page.cache_clear()
    assert found == ["a.md:3: c.md: there is no such file", "a.md:3: b.md#nowhere: there is no such heading"]
