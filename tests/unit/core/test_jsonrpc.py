"""JSON-RPC as bytes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from capstan.core import jsonrpc
from capstan.core.jsonrpc import BadCall, Call, Malformed, RequestParser, plain_parts

PARSER = RequestParser(max_items=3, max_depth=8)


def single(body: bytes) -> Call | BadCall:
    request = PARSER.parse(body)
    assert not request.is_batch
    assert len(request.items) == 1
    return request.items[0]


def call(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "m"} | members).encode()


@pytest.mark.parametrize(
    "text", [b"1", b"-7", b"1.50", b"1e400", b"12345678901234567890123", b'"a\\u0041"', '"é"'.encode(), b"null", b'""']
)
def test_an_id_is_kept_byte_for_byte(text: bytes) -> None:
    item = single(b'{"jsonrpc":"2.0","id": ' + text + b' ,"method":"m"}')
    assert isinstance(item, Call)
    assert item.id == text
    assert jsonrpc.result_reply(text, b"true") == b'{"jsonrpc":"2.0","id":' + text + b',"result":true}'


def test_params_are_kept_byte_for_byte() -> None:
    assert single(b'{"jsonrpc":"2.0","id":1,"method":"m","params":[ 1.0,\t{"a" : 1}]}') == Call(
        "m", b'[ 1.0,\t{"a" : 1}]', b"1"
    )


@pytest.mark.parametrize("body", [b'{"jsonrpc":"2.0","id":1,"method":"m"}', call(params=None), call(params=[])])
def test_missing_and_null_params_are_an_empty_array(body: bytes) -> None:
    assert single(body) == Call("m", b"[]", b"1")


def test_the_version_may_be_left_out() -> None:
    assert single(b'{"id":1,"method":"m"}') == Call("m", b"[]", b"1")


def test_a_call_without_id_is_a_notification() -> None:
    assert single(b'{"jsonrpc":"2.0","method":"m"}') == Call("m", b"[]", None)


@pytest.mark.parametrize("params", [{"a": 1}, "x", 1, True])
def test_params_that_are_no_array_are_bad_params(params: object) -> None:
    item = single(call(params=params))
    assert isinstance(item, BadCall)
    assert (item.id, item.code) == (b"1", jsonrpc.INVALID_PARAMS)


@pytest.mark.parametrize(
    ("body", "answer_id", "named"),
    [
        (b"42", b"null", "object"),
        (b'"text"', b"null", "object"),
        (b"null", b"null", "object"),
        (b"{}", b"null", "method"),
        (b'{"id":7}', b"7", "method"),
        (call(jsonrpc="1.0"), b"1", "jsonrpc"),
        (call(jsonrpc=2.0), b"1", "jsonrpc"),
        (b'{"jsonrpc":"2.0","id":"x"}', b'"x"', "method"),
        (call(method=5), b"1", "method"),
        (call(method=None), b"1", "method"),
        (call(id={"a": 1}), b"null", "id"),
        (call(id=[1]), b"null", "id"),
        (call(id=True), b"null", "id"),
    ],
)
def test_what_is_no_call_is_answered_with_the_reason(body: bytes, answer_id: bytes, named: str) -> None:
    item = single(body)
    assert isinstance(item, BadCall)
    assert (item.id, item.code) == (answer_id, jsonrpc.INVALID_REQUEST)
    assert named in item.message
    batch = PARSER.parse(b"[" + body + b"," + call() + b"]")
    assert batch.items == (item, Call("m", b"[]", b"1"))


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"{", "not valid JSON"),
        (b"[", "not valid JSON"),
        (call() + b" x", "not valid JSON at byte"),
        (b"{} x", "not valid JSON at byte"),
        (b"42 x", "not valid JSON at byte"),
        (b'{"jsonrpc":"1.0",', "not valid JSON"),
        (call()[:-1], "not valid JSON"),
        (b"\xef\xbb\xbf" + call(), "not valid JSON"),
        (b'{"jsonrpc":"2.0","id":01,"method":"m"}', "not valid JSON"),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":[NaN]}', "not valid JSON"),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":["\xff"]}', "UTF-8"),
        (b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}', "not valid JSON"),
    ],
)
def test_a_body_that_is_not_json_is_malformed(body: bytes, named: str) -> None:
    with pytest.raises(Malformed, match=named) as caught:
        PARSER.parse(body)
    assert caught.value.code == jsonrpc.PARSE_ERROR


@pytest.mark.parametrize("body", [b"[]", b" [ ] "])
def test_an_empty_batch_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed, match="empty"):
        PARSER.parse(body)


def test_a_batch_keeps_its_order_and_has_a_limit() -> None:
    calls = [call(id=number) for number in range(4)]
    request = PARSER.parse(b"[" + b",".join(calls[:3]) + b"]")
    assert request.is_batch
    assert [item.id for item in request.items] == [b"0", b"1", b"2"]
    with pytest.raises(Malformed, match="more than 3 items"):
        PARSER.parse(b"[" + b",".join(calls) + b"]")


def test_a_batch_of_one_is_a_batch() -> None:
    assert PARSER.parse(b"[" + call() + b"]").is_batch


def test_nesting_has_a_limit_in_any_member() -> None:
    # The call itself is one level.
    fitting, deeper = b"[" * 7 + b"]" * 7, b"[" * 8 + b"]" * 8
    for member in (b"params", b"other"):
        body = b'{"jsonrpc":"2.0","id":1,"method":"m","' + member + b'":%s}'
        assert isinstance(single(body % fitting), Call)
        with pytest.raises(Malformed, match="nested too deeply"):
            PARSER.parse(body % deeper)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_pathological_nesting_is_refused_politely(opening: bytes) -> None:
    for depth in (900, 1_100, 100_000):
        closing = b"]" if opening == b"[" else b"}"
        body = b'{"jsonrpc":"2.0","id":1,"method":"m","params":[' + opening * depth + b"1" + closing * depth + b"]}"
        with pytest.raises(Malformed, match="nested too deeply"):
            PARSER.parse(body)
    with pytest.raises(Malformed):
        PARSER.parse(opening * 100_000)


def test_brackets_inside_strings_do_not_nest() -> None:
    assert isinstance(single(call(params=['[[[[[[[[[[[[[[[["\\[[[[[[', "{{{{{{{{{{{{{\\\\"])), Call)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='[]{}"\\a'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='[{"\\'), inner, max_size=3),
    max_leaves=15,
)


def depth_of(value: object) -> int:
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 0


@given(JSON, st.integers(min_value=0, max_value=5))
def test_depth_is_that_of_the_decoded_value(value: object, limit: int) -> None:
    assert jsonrpc.deeper_than(json.dumps(value).encode(), limit) == (depth_of(value) > limit)


@given(st.binary(max_size=200) | st.text(alphabet='[]{}",:0aé\\').map(str.encode))
def test_any_bytes_give_a_request_or_a_reason(body: bytes) -> None:
    try:
        request = PARSER.parse(body)
    except Malformed as error:
        assert error.message  # noqa: PT017 - either outcome is right
    else:
        assert request.items


def bodies() -> st.SearchStrategy[bytes]:
    members = {
        "jsonrpc": st.sampled_from(["2.0", "1.0", 2]),
        "id": st.none() | st.integers() | st.text(max_size=3) | st.booleans() | JSON,
        "method": st.sampled_from(["eth_call", "é", 7]),
        "params": st.lists(JSON, max_size=3) | JSON,
    }
    calls = st.fixed_dictionaries({}, optional=members)
    return st.tuples(calls, st.booleans(), st.sampled_from(["", " ", "}"])).map(
        lambda drawn: (json.dumps(drawn[0], ensure_ascii=drawn[1]) + drawn[2]).encode()
    )


@given(bodies())
def test_a_plain_call_is_read_as_any_other(body: bytes) -> None:
    plain = PARSER.parse_plain(body)
    if plain is not None:
        assert single(body) == plain


LAYOUTS = (
    '{"jsonrpc":"2.0","id":%(id)s,"method":%(method)s,"params":%(params)s}',
    '{"jsonrpc":"2.0","id":%(id)s,"method":%(method)s}',
    '{"jsonrpc": "2.0", "method": %(method)s, "params": %(params)s, "id": %(id)s}',
    '{"jsonrpc":"2.0","method":%(method)s,"params":%(params)s,"id":%(id)s}',
    '{"method":%(method)s,"params":%(params)s,"id":%(id)s,"jsonrpc":"2.0"}',
    '{"method":%(method)s,"id":%(id)s,"jsonrpc":"2.0","params":%(params)s}',
)


@given(
    st.sampled_from(LAYOUTS),
    st.sampled_from(["0", "1", "17", "007", "-1", "1.5", "1e3", '"1"', "null", "9" * 18, "9" * 19]),
    st.sampled_from(['"eth_call"', '"m"', '""', '"a\\"b"', '"a\\u0062"', "1"]),
    st.lists(st.sampled_from(['"0x1"', "[]", "{}", '"]}"', '"\\\\"', '"é"', "1"]), max_size=3).map(
        lambda words: f"[{','.join(words)}]"
    ),
    st.sampled_from(["", " ", "}", ',"id":2}', ',"params":[]}']),
)
def test_the_parts_of_a_call_are_those_that_the_parser_finds(
    layout: str, call_id: str, method: str, params: str, tail: str
) -> None:
    body = (layout % {"id": call_id, "method": method, "params": params} + tail).encode()
    parts = plain_parts(body)
    if parts is None:
        return
    found_id, found_method, found_params = parts
    # Of the params nothing is known. What is known of the rest holds if they are JSON.
    try:
        json.loads(found_params)
    except ValueError:
        return
    assert single(body) == Call(found_method.decode(), found_params, found_id)


def test_the_calls_of_common_clients_are_taken_apart() -> None:
    for layout in LAYOUTS[:-1]:
        body = layout % {"id": "7", "method": '"eth_call"', "params": '["0x1",{}]'}
        params = b'["0x1",{}]' if "params" in layout else b"[]"
        assert plain_parts(body.encode()) == (b"7", b"eth_call", params)


def test_most_calls_are_plain() -> None:
    assert PARSER.parse_plain(call(params=["0x1", {"a": []}])) == single(call(params=["0x1", {"a": []}]))
    for unusual in (call(params=None), call(params=["é"]).replace(b"\\u00e9", "é".encode()), b" " + call(params=[])):
        assert PARSER.parse_plain(unusual) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":7,"result":"0x1","jsonrpc":"2.0"}',
        b' {"result" : [1] ,"id":7}\n',
        b'{"id":8,"result":1}',
        b'{"id":"7","result":1}',
        b'{"id":7,"result":1,"error":null}',
        b'{"id":7,"error":{"code":3}}',
        b'{"id":7,"result":1,"error":{"code":3}}',
        b'{"id":7}',
        b'{"result":1}',
        '{"id":7,"result":"é"}'.encode(),
        b'{"id":7,"result":"\xff"}',
        b'{"id":7,"result":1',
        b'{"id":7,"result":' + b"[" * 100_000,
        b"[]",
    ],
)
def test_a_plain_result_is_that_of_the_reply(body: bytes) -> None:
    plain = jsonrpc.plain_result(body, b"7")
    if plain is None:
        return
    reply = jsonrpc.decode_reply(body)
    assert (reply.id, reply.error, bytes(reply.result or b"")) == (b"7", None, bytes(plain))


def test_most_results_are_plain() -> None:
    found = jsonrpc.plain_result(b'{"jsonrpc":"2.0","id":7,"result":{"a":[1]}}', b"7")
    assert found is not None
    assert bytes(found) == b'{"a":[1]}'
    for other in (b'{"id":8,"result":1}', b'{"id":7,"result":1,"error":{"code":3}}', b'{"id":7,"result":1'):
        assert jsonrpc.plain_result(other, b"7") is None


def test_a_call_to_a_node_is_valid_json() -> None:
    assert json.loads(jsonrpc.encode_call(7, 'quo"te', b"[1]")) == {
        "jsonrpc": "2.0",
        "id": 7,
        "method": 'quo"te',
        "params": [1],
    }


@pytest.mark.parametrize("result", [b"null", b"[]", b'"0x"', b"1.0"])
def test_a_result_of_a_node_is_kept_byte_for_byte(result: bytes) -> None:
    reply = jsonrpc.decode_reply(b'{"jsonrpc":"2.0","id":7,"error":null,"result":' + result + b"}")
    assert reply.id == b"7"
    assert reply.error is None
    assert reply.result is not None
    assert bytes(reply.result) == result


def test_an_error_of_a_node_wins_over_a_null_result() -> None:
    reply = jsonrpc.decode_reply(b'{"id":7,"result":null,"error":{"code":3,"message":"reverted","data":"0x12"}}')
    assert reply.result is None
    assert reply.error is not None
    error = jsonrpc.decode_error(reply.error)
    assert (error.code, error.message, bytes(error.data)) == (3, "reverted", b'"0x12"')


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"{}", b'{"id":7}', b'{"id":7,"result":', b'{"id":7,"result":"\xff"}', b"[" * 100_000],
)
def test_what_is_no_reply_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"^(?:not|neither|nested)"):
        jsonrpc.decode_reply(body)


@pytest.mark.parametrize("error", [b'"text"', b"{}", b'{"code":"x"}', b"[1]"])
def test_an_error_without_a_code_is_refused(error: bytes) -> None:
    with pytest.raises(ValueError, match="integer code"):
        jsonrpc.decode_error(Raw(error))


def test_replies_are_written() -> None:
    assert json.loads(jsonrpc.error_reply(b'"x"', -32601, "no", {"a": 1})) == {
        "jsonrpc": "2.0",
        "id": "x",
        "error": {"code": -32601, "message": "no", "data": {"a": 1}},
    }
    assert jsonrpc.node_error_reply(b"1", b'{"code":3 }') == b'{"jsonrpc":"2.0","id":1,"error":{"code":3 }}'
    assert jsonrpc.batch_reply([b"1", b"2"]) == b"[1,2]"
