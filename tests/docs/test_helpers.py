"""The helpers of this folder notice what they are there to notice."""

import textwrap
from pathlib import Path

import pytest

from tests.docs.generated import regenerated
from tests.docs.markdown import Page, parse
from tests.docs.matching import json_differences, text_differences
from tests.docs.session import Session, Substitutions, calls_without_answer


def page_of(text: str) -> Page:
    """A page from an indented text."""
    return parse("page.md", textwrap.dedent(text))


def test_directives_belong_to_the_next_block_only() -> None:
    """Blank lines may stand between; a sentence may not."""
    page = page_of("""
        <!-- varies: result, id -->

        ```json
        {}
        ```

        <!-- not run: needs a machine -->
        A sentence.

        ```sh
        true
        ```
        """)
    assert [block.directives for block in page.blocks] == [{"varies": "result, id"}, {}]
    assert [block.line for block in page.blocks] == [4, 11]


def test_block_that_does_not_end_is_refused() -> None:
    """Otherwise the rest of the page would be unread."""
    with pytest.raises(ValueError, match=r"page.md:1: the block does not end"):
        parse("page.md", "```sh\ntrue\n")


@pytest.mark.parametrize(
    ("expected", "printed", "matches"),
    [
        ('{"a": 1}', '{"a": 1}', True),
        ('{"a": 1}', '{"a": 2}', False),
        ('{"a": 1}', '{"a": true}', False),
        ('{"a": 1}', '{"a": 1, "b": 2}', False),
        ('{"a": 1, "b": 2}', '{"a": 1}', False),
        ('{"a": "x…z"}', '{"a": "xyz"}', True),
        ('{"a": "x…z"}', '{"a": "xy"}', False),
        ('{"a": "x.z"}', '{"a": "xyz"}', False),
        ('{"head": 1}', '{"head": 7}', True),
        ('{"head": 1}', '{"head": "7"}', False),
        ('[{"head": 1}]', '[{"head": 2}, {"head": 3}]', False),
        ("{}", "curl: (7) refused", False),
    ],
)
def test_printed_json_is_compared(expected: str, printed: str, matches: bool) -> None:
    """Keys, types and values, but for what varies."""
    assert (json_differences(expected, printed, ["head"]) == []) is matches


@pytest.mark.parametrize(
    ("expected", "printed", "matches"),
    [
        ("one\ntwo", "one\ntwo\n", True),
        ("one\ntwo", "one", False),
        ("one", "one\ntwo", False),
        ("HEAD  …  ok", "HEAD     17  ok", True),
        ("HEAD  …  ok", "HEAD     17  away", False),
        ("…\nlast", "first\nsecond\nlast", True),
        ("…\nlast", "first\nsecond", False),
        ("", "", True),
        ("HTTP/1.1 200 OK\na: 1\nb: …\n\nbody", "HTTP/1.1 200 OK\nB: 2\nA: 1\n\nbody", True),
        ("HTTP/1.1 200 OK\na: 1\n\nbody", "HTTP/1.1 404 Not Found\na: 1\n\nbody", False),
        ("HTTP/1.1 200 OK\na: 1\n\nbody", "HTTP/1.1 200 OK\na: 1\nb: 2\n\nbody", False),
    ],
)
def test_printed_text_is_compared(expected: str, printed: str, matches: bool) -> None:
    """Line by line, but for what is left open."""
    assert (text_differences(expected, printed) == []) is matches


def test_call_without_an_answer_is_found() -> None:
    """Also when something else stands between the call and what looks like its answer."""
    page = page_of("""
        ```sh
        curl -s http://127.0.0.1:8080/v1/account
        ```

        A sentence.

        ```json
        {}
        ```
        """)
    assert [block.place for block in calls_without_answer(page)] == ["page.md:2"]


def run(page: Page, directory: Path) -> list[str]:
    """The faults of a page that needs no service."""
    return Session(page, directory, directory, Substitutions({"127.0.0.1:8090": "127.0.0.1:4711"})).run()


def test_session_keeps_variables_files_and_addresses(tmp_path: Path) -> None:
    """What one block leaves, the next one finds."""
    page = page_of("""
        <!-- file: note.txt -->
        ```text
        at 127.0.0.1:8090
        ```

        ```sh
        NAME=$(cut -d : -f 2 note.txt)
        ```

        ```sh
        echo "$NAME"; cat note.txt
        ```

        ```text
        4711
        at 127.0.0.1:8090
        ```

        ```python
        print("from Python")
        ```

        ```text
        from Python
        ```
        """)
    assert run(page, tmp_path) == []


def test_session_stops_at_a_command_that_fails(tmp_path: Path) -> None:
    """And names the block, its commands and what they printed."""
    page = page_of("""
        ```sh
        true
        ```

        ```sh
        echo before; ls nowhere | cat; echo after
        ```
        """)
    (fault,) = run(page, tmp_path)
    assert fault.startswith("page.md:6 failed with code 2")
    assert "before" in fault
    assert "after" not in fault.partition("It printed:")[2]


def test_session_reports_what_was_printed_instead(tmp_path: Path) -> None:
    """A page that promises something else is wrong."""
    page = page_of("""
        ```sh
        echo '{"result": 1}'
        ```

        ```json
        {"result": 2}
        ```
        """)
    assert run(page, tmp_path) == ["page.md:6: $.result: 2 is documented, 1 was printed"]


def test_session_without_curl_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clear failure, not a skipped test."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(page_of("# Nothing\n"), tmp_path / "run") == [
        "bash is not on this machine; the pages need it, so install it"
    ]


def test_unknown_generated_part_is_refused() -> None:
    """A name that nothing writes."""
    with pytest.raises(KeyError, match="nonsense"):
        regenerated("<!-- generated: nonsense -->\n<!-- end of generated -->")
