"""The reference page says what the document says, completely, safely and in a form that everyone can read."""

import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from litestar import Litestar, post
from litestar.params import FromPath, FromQuery, JSONBody

from capstan.server.reference import render_reference, static_file
from tests.support.reference_document import ADDRESS, HOSTILE, hostile, sample_document
from tests.support.reference_page import Element, command_of, parsed, rows, run_command


@pytest.fixture(scope="module")
def page() -> Element:
    return parsed(sample_document())


BALANCES = "get-v1-tokens-chain-balances-address"
CREATE = "post-v1-webhooks"
RPC = "post-v1-rpc-chain-network"
DELETE = "delete-v1-webhooks-id"


def test_contents_list_every_operation_under_its_tag_and_described_tags_come_first(page: Element) -> None:
    (contents,) = page.all("nav")
    groups = contents.all(lambda element: "data-group" in element.attributes)

    listed = {group.children[1].text: [item.text for item in group.all("li")] for group in groups}

    assert listed == {
        "Tokens": ["GET ERC-20 balances"],
        "JSON-RPC": ["POST JSON-RPC call"],
        "Webhooks": ["GET List webhooks", "POST Create a webhook", "DELETE Delete a webhook"],
        "Service": ["GET Whether the service works"],
    }
    assert next(iter(listed)) == "Tokens"


def test_every_link_inside_the_page_leads_to_an_element_of_it(page: Element) -> None:
    targets = [link.attributes["href"] for link in page.all("a") if link.attributes["href"].startswith("#")]

    assert len(targets) > 15
    for target in targets:
        page.by_id(target[1:])


def test_parameters_show_place_type_need_default_limits_and_description(page: Element) -> None:
    table = rows(page.by_id(BALANCES).all("table")[0])

    assert table["Name"] == ["In", "Type", "Required", "Default", "Limits", "Description"]
    assert table["chain"] == ["path", "string", "yes", "", "", "The chain, such as ethereum."]
    assert table["address"] == ["path", "string", "yes", "", "matches ^0x[0-9a-fA-F]{40}$", ""]
    assert table["limit"] == ["query", "integer", "no", "50", "at least 1at most 100", "Entries on one page."]


def test_a_parameter_that_may_be_left_out_is_not_said_to_be_null(page: Element) -> None:
    assert rows(page.by_id(BALANCES).all("table")[0])["network"][1] == "string"
    assert rows(page.by_id("get-v1-webhooks").all("table")[0])["status"][1] == "string"


def test_nested_fields_have_whole_names_and_both_spellings_of_null_read_alike(page: Element) -> None:
    table = rows(page.by_id(BALANCES))

    assert table["tokens"][:3] == ["array of object", "always", "at most 100 items"]
    assert table["tokens[].contract"] == ["string", "always", "", "The token's contract."]
    assert table["tokens[].usd_value"][:2] == ["string or null", "always"]
    assert table["tokens[].logo_url"][:2] == ["string (uri) or null", "sometimes"]
    assert table["tokens[].standard"][2] == "one of ERC20 ERC777"


def test_a_shape_that_contains_itself_is_shown_once(page: Element) -> None:
    table = rows(page.by_id(CREATE).all("table")[0])

    assert table["rule"] == ["object or null", "no", "", "A condition, or several joined by any."]
    assert table["rule.any"][0] == "array of object"
    assert "Has the same fields again." in table["rule.any"][3]
    assert not [name for name in table if name.startswith("rule.any[]")]


def test_fields_of_maps_and_of_alternative_shapes_are_told_apart(page: Element) -> None:
    table = rows(page.by_id(CREATE).all("table")[0])

    assert table["labels"][0] == "map of string"
    assert table["owners"][0] == "map of object"
    assert table["owners.{key}.deleted"][:2] == ["boolean", "yes"]
    assert table["digest.hour"] == ["integer", "yes", "at least 0at most 23", "Only in Daily."]
    assert table["digest.events"] == ["integer", "yes", "more than 0", "Only in Counted."]


def test_parts_joined_with_all_of_are_one_body(page: Element) -> None:
    table = rows(page.by_id(CREATE).all("table")[1])

    assert table["url"][1] == "always"
    assert table["id"][1] == "always"
    assert table["status"][2] == "one of active paused disabled"


def test_one_call_or_a_batch_lists_the_fields_once(page: Element) -> None:
    section = page.by_id(RPC)

    assert "application/json, object or array of object." in section.text
    assert "method" in rows(section)
    assert not [name for name in rows(section) if name.startswith("[]")]


def test_headers_of_every_response_are_described_once_and_others_with_their_operation(page: Element) -> None:
    common = rows(page.by_id("headers"))

    assert list(common)[1:] == ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Request-Id"]
    assert page.text.count("Requests left in the window.") == 1
    assert rows(page.by_id(BALANCES))["X-Index-Block"][1] == "The last block the answer knows of."


def test_errors_name_status_code_and_reason_and_share_one_description_of_their_body(page: Element) -> None:
    table = rows(page.by_id(BALANCES))

    assert table["404"] == ["not_found", "There is no such thing."]
    assert table["429"] == ["rate_limited", "A limit is spent. Header Retry-After: Whole seconds to wait."]
    assert rows(page.by_id("errors"))["error.code"][2] == "A stable word for programs."
    assert page.text.count("A stable word for programs.") == 1


def test_an_error_with_a_body_of_its_own_shows_it(page: Element) -> None:
    section = page.by_id(DELETE)

    assert "409 has a body of its own" in section.text
    assert rows(section)["busy"][2] == "always true"


def test_an_operation_without_security_is_said_to_be_open(page: Element) -> None:
    assert "needs no key" in page.by_id("get-health").text
    assert "needs no key" not in page.by_id(BALANCES).text
    assert "X-API-Key" not in command_of(page, "get-health")


def test_a_deprecated_operation_says_so(page: Element) -> None:
    assert page.by_id(DELETE).all("h3")[0].text == "Delete a webhook deprecated"


def test_the_command_reads_the_key_from_the_environment_and_uses_the_given_examples(
    page: Element, tmp_path: Path
) -> None:
    given = run_command(command_of(page, BALANCES), tmp_path, API_KEY="svc_test_x")

    url = f"https://api.example.com/v1/tokens/ethereum/balances/{ADDRESS}"
    assert given == ["-s", url, "-H", "X-API-Key: svc_test_x"]


def test_the_command_sends_the_required_fields_of_the_body(page: Element, tmp_path: Path) -> None:
    given = run_command(command_of(page, CREATE), tmp_path, API_KEY="k")

    assert given[:2] == ["-s", "https://api.example.com/v1/webhooks"]
    assert "Content-Type: application/json" in given
    assert json.loads(given[given.index("--data") + 1]) == {
        "url": "https://example.com",
        "chain": "ethereum",
        "event_type": "address_activity",
    }


def test_an_example_of_the_document_wins_over_a_made_one(page: Element, tmp_path: Path) -> None:
    given = run_command(command_of(page, RPC), tmp_path, API_KEY="k")

    assert given[1] == "https://api.example.com/v1/rpc/ethereum/mainnet"
    assert json.loads(given[-1]) == {"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}


def test_the_command_encodes_path_values_and_names_the_method(page: Element, tmp_path: Path) -> None:
    given = run_command(command_of(page, DELETE), tmp_path, API_KEY="k")

    assert given[:4] == ["-s", "-X", "DELETE", "https://api.example.com/v1/webhooks/wh_1%2F2"]


def test_hostile_examples_stay_plain_arguments_of_the_command(tmp_path: Path) -> None:
    document = sample_document()
    parameter = {"name": "q", "in": "query", "required": True, "schema": {"type": "string"}, "example": HOSTILE}
    body = {"content": {"application/json": {"schema": {}, "example": {"text": HOSTILE}}}}
    document["paths"] = {"/x": {"post": {"parameters": [parameter], "requestBody": body, "responses": {}}}}

    given = run_command(command_of(parsed(document), "post-x"), tmp_path, API_KEY="k")

    assert json.loads(given[-1]) == {"text": HOSTILE}
    assert not (tmp_path / "pwned").exists()


def test_a_header_name_that_is_none_is_not_put_into_the_command() -> None:
    document = sample_document()
    document["components"]["securitySchemes"] = {
        "apiKey": {"type": "apiKey", "in": "header", "name": 'X"; touch pwned; "'}
    }

    assert "touch pwned" not in render_reference(document)


def test_an_address_without_a_host_becomes_a_variable_of_the_shell(tmp_path: Path) -> None:
    page = parsed(sample_document("/api"))

    given = run_command(command_of(page, "get-health"), tmp_path, API_URL="http://127.0.0.1:8080")

    assert given == ["-s", "http://127.0.0.1:8080/api/health"]
    assert "API_URL=" in page.by_id("start").text
    assert page.all("body")[0].attributes["data-base"] == "/api"


def test_text_of_the_document_never_becomes_markup() -> None:
    page = parsed(hostile(sample_document()))

    scripts = page.all("script")
    assert [script.attributes for script in scripts] == [{"src": "/docs/reference.js", "defer": ""}]
    assert not page.all("img")
    assert not page.all("b")
    assert "alert(1)" in page.text
    assert "{{ 7*7 }}" in page.text
    for element in page.all(lambda element: True):
        assert not [name for name in element.attributes if name.startswith("on")]


def test_the_page_has_no_inline_style_script_or_handler_and_loads_only_its_own_files() -> None:
    page = parsed(sample_document())
    loaded = [
        element.attributes.get("src") or element.attributes["href"]
        for element in page.all(lambda element: element.tag in ("script", "link", "img", "iframe"))
    ]

    assert loaded == ["data:,", "/docs/reference.css", "/docs/reference.js"]
    assert not page.all("style")
    assert not page.all(lambda element: "style" in element.attributes)
    assert page.all("script")[0].text == ""


def test_the_page_has_landmarks_ordered_headings_and_labels_for_every_input(page: Element) -> None:
    for landmark in ("header", "nav", "main", "footer"):
        assert len(page.all(landmark)) == 1, landmark
    levels = [int(heading.tag[1]) for heading in page.all(lambda element: bool(re.fullmatch("h[1-6]", element.tag)))]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    labelled = {label.attributes["for"] for label in page.all("label")}
    inputs = page.all(lambda element: element.tag in ("input", "textarea"))
    assert len(inputs) > 8
    assert {element.attributes["id"] for element in inputs} == labelled
    assert page.all("a")[0].attributes == {"class": "skip", "href": "#main"}


def test_ids_are_unique_and_names_of_regions_exist(page: Element) -> None:
    ids = [element.attributes["id"] for element in page.all(lambda element: "id" in element.attributes)]
    assert len(ids) == len(set(ids))
    for element in page.all(lambda element: "aria-labelledby" in element.attributes):
        assert page.by_id(element.attributes["aria-labelledby"]).text


def test_operations_with_the_same_anchor_get_different_ones() -> None:
    document = sample_document()
    document["paths"] = {path: {"get": {"responses": {}}} for path in ("/a/b", "/a-b", "/a/{b}")}

    page = parsed(document)

    assert [article.attributes["id"] for article in page.all("article")] == ["get-a-b", "get-a-b-2", "get-a-b-3"]


def test_what_only_works_with_javascript_is_hidden_until_it_runs(page: Element) -> None:
    hidden = page.all(lambda element: "hidden" in element.attributes)

    assert {element.attributes["class"] for element in hidden} == {"filter", "key-form", "try", "result", "nothing"}


def test_the_key_field_is_not_remembered_by_the_browser(page: Element) -> None:
    field = page.by_id("key").attributes

    assert (field["type"], field["autocomplete"]) == ("password", "off")
    assert "value" not in field
    assert "name" not in field


@pytest.mark.parametrize(
    "document",
    [
        {"openapi": "3.1.0", "info": {"title": "Empty", "version": "1"}, "paths": {}},
        {"openapi": "3.1.0", "info": {"title": "Bare", "version": "1"}, "paths": {"/x": {"get": {}}}},
    ],
)
def test_a_document_that_says_little_gives_a_short_page(document: dict[str, Any]) -> None:
    assert parsed(document).all("h1")[0].text == "API reference"


def test_references_that_lead_nowhere_or_in_circles_do_not_break_the_page() -> None:
    document = sample_document()
    document["components"]["schemas"] |= {
        "Here": {"$ref": "#/components/schemas/There"},
        "There": {"$ref": "#/components/schemas/Here"},
        "Nest": {"type": "array", "items": {"$ref": "#/components/schemas/Nest"}},
        "Both": {"oneOf": [{"$ref": "#/components/schemas/Both"}, {"type": "string"}]},
    }
    names = ("Here", "Nest", "Both", "Missing")
    properties = {name: {"$ref": f"#/components/schemas/{name}"} for name in names}
    schema = {"type": "object", "properties": {**properties, "far": {"$ref": "other.json#/x"}}, "required": ["Both"]}
    body = {"content": {"application/json": {"schema": schema}}}
    document["paths"] = {"/x": {"post": {"requestBody": body, "responses": {}}}}

    table = rows(parsed(document).by_id("post-x"))

    assert table["Here"][0] == "any"
    assert table["Missing"][0] == "any"
    assert table["far"][0] == "any"
    assert table["Nest"][0].startswith("array of array")
    assert table["Both"][0] == "string"


class Inner(msgspec.Struct, frozen=True):
    """Something inside."""

    amount: Annotated[int, msgspec.Meta(ge=0, le=10, description="How many.")]
    note: str | None = None


class Outer(msgspec.Struct, frozen=True):
    """Something outside."""

    items: list[Inner]
    by_name: dict[str, Inner]


@post("/things/{name:str}", tags=["things"], summary="Make a thing")
async def make_thing(name: FromPath[str], data: JSONBody[Outer], count: FromQuery[int] = 3) -> Inner:
    """Makes it."""
    raise NotImplementedError


def test_a_document_that_litestar_makes_is_shown_completely() -> None:
    document = json.loads(json.dumps(Litestar([make_thing]).openapi_schema.to_schema()))

    section = parsed(document).by_id("post-things-name")

    table = rows(section)
    assert table["count"][:4] == ["query", "integer", "no", "3"]
    assert table["items[].amount"] == ["integer", "yes", "at least 0at most 10", "How many."]
    assert table["by_name.{key}.note"][0] == "string or null"
    assert "URL follows" not in section.text
    assert shlex.split(command_of(parsed(document), "post-things-name").replace("\\\n", ""))[-1].startswith("{")


@pytest.mark.parametrize("name", ["reference.css", "reference.js"])
def test_static_files_come_with_their_type(name: str) -> None:
    found = static_file(name)

    assert found is not None
    assert len(found[0]) > 1000
    assert found[1] in ("text/css; charset=utf-8", "text/javascript; charset=utf-8")


@pytest.mark.parametrize("name", ["", "..", "../page.py", "reference.html", "/etc/passwd", "reference.css/", "x.css"])
def test_no_other_file_is_given_out(name: str) -> None:
    assert static_file(name) is None


def test_static_files_load_nothing_from_elsewhere_and_store_nothing() -> None:
    for name in ("reference.css", "reference.js"):
        found = static_file(name)
        assert found is not None
        text = found[0].decode()
        for word in ("http://", "https://", "url(", "@import", "localStorage", "sessionStorage", "cookie ="):
            assert word not in text, (name, word)
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, (name, word)
