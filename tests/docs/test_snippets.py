"""Every command and program in the pages runs, and prints what the page says.

The pages run side by side, because most of the time is spent in starting commands; each has a directory of its own.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import pytest

from tests.docs.markdown import Page, page_names, read_page
from tests.docs.session import Session, Substitutions, calls_without_answer, is_run
from tests.support.development import Development
from tests.support.servers import PostgresProcess, free_port

PAGES_WITH_STEPS = [name for name in page_names() if any(is_run(block) for block in read_page(name).blocks)]
AT_ONCE = 3
_SECONDS = 300.0

Outcomes = Mapping[str, Future[list[str]]]


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, development: Development, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    """What is wrong with each page, as soon as it has run. Pages that no test was selected for are not run."""
    selected = {item.name for item in request.session.items}
    with ExitStack() as servers, ThreadPoolExecutor(AT_ONCE) as pool:
        found: dict[str, Future[list[str]]] = {}
        for name in PAGES_WITH_STEPS:
            if f"{test_page_does_what_it_says.__name__}[{name}]" not in selected:
                continue
            page = read_page(name)
            substitutions = servers.enter_context(_servers_for(page, development, request))
            session = Session(page, tmp_path_factory.mktemp("page"), development.directory, substitutions)
            found[name] = pool.submit(session.run)
        yield found
        # With the first failure of a run that stops there, the rest need not begin.
        pool.shutdown(cancel_futures=True)


@contextmanager
def _servers_for(page: Page, development: Development, request: pytest.FixtureRequest) -> Iterator[Substitutions]:
    """The addresses in the pages and the servers that take their place; those a page does not name do not start."""
    values = {
        "127.0.0.1:8080": urlsplit(development.base_url).netloc,
        "127.0.0.1:8545": urlsplit(str(development.document["node_url"])).netloc,
        "8090": str(free_port()),
    }
    if "redis://" in page.text:
        values["redis://127.0.0.1:6379/0"] = request.getfixturevalue("valkey_url")
    statements = "".join(block.text for block in page.blocks if block.language == "sql")
    if not statements:
        yield Substitutions(values)
        return
    server: PostgresProcess = request.getfixturevalue("postgres_server")
    address = server.url("capstan").replace("postgres@", "capstan:secret@")
    values["postgresql://capstan:secret@127.0.0.1/capstan"] = address
    for statement in statements.split(";"):
        if statement.strip():
            server.sql(statement)
    yield Substitutions(values)
    server.sql("DROP DATABASE capstan WITH (FORCE)")
    server.sql("DROP ROLE capstan")


@pytest.mark.parametrize("name", PAGES_WITH_STEPS)
def test_page_does_what_it_says(name: str, outcomes: Outcomes) -> None:
    """The page runs from top to bottom."""
    faults = outcomes[name].result(_SECONDS)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("name", page_names())
def test_every_call_of_the_api_shows_its_answer(name: str) -> None:
    """A call without an answer in the page would pass whatever the server says."""
    places = [block.place for block in calls_without_answer(read_page(name))]
    assert not places, f"put what is printed into a json or text block directly below: {places}"
