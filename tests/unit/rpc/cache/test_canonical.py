"""Two requests share a key when they mean the same, and never when they could mean different things.

The oracle below decides what a request means in a slow and plain way of its own: it keeps the order and the repetition
of keys, and numbers as they are written.
"""

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.chain.models import Family
from capstan.rpc.cache.policy import ask, ask_fully, ask_plainly
from capstan.rpc.cache.rules import RULES, Rule

ADDRESS = "0xAbCdEf0123456789aBcDeF0123456789AbCdEf01"
HASH = "0x" + "aB" * 32


def key(method: str, params: bytes, family: Family = "evm") -> bytes:
    return ask("ethereum/mainnet", family, method, params).key


# --- the oracle

# Methods whose arguments are all hex, and others where only the block is.
HEX = {"eth_call", "eth_getStorageAt", "eth_getBlockReceipts", "eth_getLogs", "eth_getProof"}
BLOCKS = {"debug_traceBlockByNumber": 0, "eth_getBlockByNumber": 0, "eth_feeHistory": 1}


class Number(str):
    """A number as it is written."""


def parse(params: bytes) -> Any:
    return json.loads(params, object_pairs_hook=lambda pairs: ("object", pairs), parse_int=Number, parse_float=Number)


def plain(value: Any, hexes: bool) -> Any:
    """A value that is equal to another exactly if every node takes them for the same."""
    if isinstance(value, Number):
        return ("number", str(value))
    if isinstance(value, str):
        return value.lower() if hexes and re.fullmatch("0x[0-9a-fA-F]*", value) else value
    if isinstance(value, list):
        return ("list", tuple(plain(element, hexes) for element in value))
    if isinstance(value, tuple):
        pairs = [(plain(name, hexes), plain(member, hexes)) for name, member in value[1]]
        if len({str(name).lower() for name, _ in pairs}) == len(pairs):
            return ("object", frozenset(pairs))
        return ("ordered object", tuple(pairs))
    return (type(value).__name__, value)


def meaning(method: str, params: bytes) -> Any:
    arguments = parse(params)
    written = [
        plain(argument, method in HEX or BLOCKS.get(method) == place) for place, argument in enumerate(arguments)
    ]
    if method == "eth_call" and len(written) == 1:
        written.append("latest")
    slot = written[1] if method == "eth_getStorageAt" and len(written) > 1 else None
    if isinstance(slot, str) and re.fullmatch("0x(0|[1-9a-f][0-9a-f]*|[0-9a-f]{64})", slot):
        written[1] = ("slot", int(slot, 16))
    if method == "getAccountInfo" and len(arguments) == 2 and isinstance(arguments[1], tuple):
        kept = [pair for pair in arguments[1][1] if pair != ("commitment", "finalized")]
        written[1:] = [plain(("object", kept), False)] if kept else []
    return tuple(written)


# --- requests: few values, so that equal ones meet often

hexes = st.sampled_from(
    ["0x", "0x0", "0x1", "0x01", "0xa", "0xA", "0x0a", ADDRESS, ADDRESS.lower(), HASH, "0x" + "0" * 64]
)
words = st.sampled_from(["latest", "Latest", "pending", "finalized", "", "true", ":", "a:b", "0xg", "é"])
scalars = st.one_of(hexes, words, st.sampled_from([None, True, False, 0, 1, -0.0, 1.0, 10]))
names = st.sampled_from(["to", "To", "data", "fromBlock", "toBlock", "blockHash", "blockNumber", "commitment", ADDRESS])
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.lists(st.tuples(names, inner), max_size=3).map(lambda pairs: ("object", pairs))
    ),
    max_leaves=5,
)
blocks = st.one_of(
    hexes, words, st.just(("object", [("blockNumber", "0x1")])), st.just(("object", [("blockHash", HASH)]))
)
callings = st.lists(st.tuples(names, scalars), max_size=3).map(lambda pairs: ("object", pairs))
METHODS: dict[str, tuple[Family, Any]] = {
    "eth_call": ("evm", [callings, blocks, callings]),
    "eth_getStorageAt": ("evm", [hexes, hexes, blocks]),
    "eth_getBlockByNumber": ("evm", [blocks, scalars]),
    "eth_getBlockReceipts": ("evm", [blocks]),
    "eth_feeHistory": ("evm", [scalars, blocks, st.lists(scalars, max_size=2)]),
    "eth_getLogs": ("evm", [callings]),
    "eth_getProof": ("evm", [hexes, st.lists(hexes, max_size=2), blocks]),
    "debug_traceBlockByNumber": ("evm", [blocks, values]),
    "getAccountInfo": (
        "solana",
        [
            words,
            st.lists(st.tuples(names, st.sampled_from(["finalized", "confirmed", "x"])), max_size=2).map(
                lambda pairs: ("object", pairs)
            ),
        ],
    ),
}


def write(value: Any, chance: random.Random) -> str:
    """The JSON text of a value, spelled by chance: white space, escapes."""
    space = chance.choice(["", "", "", " ", "\n\t"])
    if isinstance(value, tuple):
        members = (f"{write(name, chance)}{space}:{write(member, chance)}" for name, member in value[1])
        return space + "{" + ",".join(members) + space + "}"
    if isinstance(value, list):
        return "[" + space + ",".join(write(element, chance) for element in value) + "]" + space
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value and chance.random() < 0.02:
        text = f'"\\u{ord(value[0]):04x}{json.dumps(value[1:])[1:]}'
    return space + text


def respelled(value: Any, chance: random.Random, hexes: bool) -> Any:
    """The same in other words: letter case of hex, order of keys that differ."""
    if isinstance(value, str) and hexes and re.fullmatch("0x[0-9a-fA-F]+", value):
        return "0x" + "".join(chance.choice([digit.lower(), digit.upper()]) for digit in value[2:])
    if isinstance(value, list):
        return [respelled(element, chance, hexes) for element in value]
    if isinstance(value, tuple):
        pairs = [(respelled(name, chance, hexes), respelled(member, chance, hexes)) for name, member in value[1]]
        if len({name.lower() for name, _ in pairs}) == len(pairs):
            chance.shuffle(pairs)
        return ("object", pairs)
    return value


def mutated(value: Any, chance: random.Random) -> Any:
    """Nearly the same, in a way that a careless reader would take for the same."""
    if isinstance(value, tuple):
        pairs = [(name, mutated(member, chance)) for name, member in value[1]]
        if pairs and chance.random() < 0.6:
            name, member = chance.choice(pairs)
            name = chance.choice([name, name, name.upper(), name.lower()])
            pairs.insert(chance.randrange(len(pairs) + 1), (name, chance.choice([member, "0x1", "0xa"])))
        return ("object", pairs)
    if isinstance(value, list):
        changed = [mutated(element, chance) for element in value]
        if len(changed) > 1 and chance.random() < 0.2:
            chance.shuffle(changed)
        return changed
    if chance.random() < 0.7:
        return value
    if isinstance(value, str):
        return chance.choice([value.replace("0x", "0x0"), value + " ", value.upper(), value.replace("0x", "0X")])
    return chance.choice([value, None, True, 1])


@st.composite
def requests(draw: st.DrawFn, method: str) -> tuple[Any, bytes]:
    _, kinds = METHODS[method]
    count = draw(st.integers(0, len(kinds)))
    arguments = [draw(kind) for kind in kinds[:count]]
    chance = random.Random(draw(st.integers(0, 2**32)))
    return arguments, write(arguments, chance).encode()


@pytest.mark.parametrize("method", METHODS)
@settings(derandomize=True, deadline=None, max_examples=50)
@given(data=st.data())
def test_requests_that_share_a_key_mean_the_same(method: str, data: st.DataObject) -> None:
    family = METHODS[method][0]
    seen: dict[bytes, tuple[Any, bytes]] = {}
    for _ in range(8):
        _, params = data.draw(requests(method))
        found = key(method, params, family)
        if not found:
            continue
        meant, first = seen.setdefault(found, (meaning(method, params), params))
        assert meant == meaning(method, params), f"{first!r} and {params!r} share a key"


@pytest.mark.parametrize("method", METHODS)
@settings(derandomize=True, deadline=None, max_examples=100)
@given(data=st.data())
def test_nearly_the_same_request_has_another_key(method: str, data: st.DataObject) -> None:
    family = METHODS[method][0]
    arguments, _ = data.draw(requests(method))
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    seen: dict[bytes, tuple[Any, bytes]] = {}
    for variant in [arguments, *(mutated(arguments, chance) for _ in range(6))]:
        params = write(variant, chance).encode()
        # Numbers that only nearly mean the same.
        params = re.sub(
            rb"\b(?<!\")1(\.0)?\b(?![\"x])", lambda _: chance.choice([b"1", b"1.0", b"1.00", b"1e0"]), params
        )
        found = key(method, params, family)
        if found:
            meant, first = seen.setdefault(found, (meaning(method, params), params))
            assert meant == meaning(method, params), f"{first!r} and {params!r} share a key"


@pytest.mark.parametrize("method", METHODS)
@settings(derandomize=True, deadline=None, max_examples=80)
@given(data=st.data())
def test_the_same_request_in_other_words_has_the_same_key(method: str, data: st.DataObject) -> None:
    family = METHODS[method][0]
    arguments, params = data.draw(requests(method))
    found = key(method, params, family)
    text = found.split(b"\x00")[-1]
    if not found or text.startswith(b"~"):
        return
    # Whoever asks in the canonical words is answered without being read, so they must mean the same.
    assert ask("ethereum/mainnet", family, method, text[1:]) == ask("ethereum/mainnet", family, method, params)
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    other = write(respelled(arguments, chance, method in HEX), chance).encode()
    if b"\\" not in other:
        assert key(method, other, family) == found, f"{params!r} and {other!r}"


@pytest.mark.parametrize(
    ("method", "one", "other"),
    [
        ("eth_chainId", "[]", " [ ] "),
        ("eth_getBalance", f'["{ADDRESS}","0xA"]', f'["{ADDRESS.lower()}" , "0xa"]'),
        ("eth_call", '[{"to":"0xAA","data":"0x"}]', '[{"data":"0x","to":"0xaa"},"latest"]'),
        ("eth_getStorageAt", f'["{ADDRESS}","0x0","latest"]', f'["{ADDRESS}","0x{"0" * 64}","latest"]'),
        ("eth_getStorageAt", f'["{ADDRESS}","0x1f","0x5"]', f'["{ADDRESS}","0x{"1f".zfill(64)}","0x5"]'),
        ("eth_getBlockReceipts", f'["{HASH}"]', f'["{HASH.lower()}"]'),
    ],
)
def test_spellings_of_one_question(method: str, one: str, other: str) -> None:
    assert key(method, one.encode()) == key(method, other.encode()) != b""


@pytest.mark.parametrize(
    ("method", "one", "other"),
    [
        # Strict nodes want the block here, and refuse leading zeros everywhere.
        ("eth_getBalance", f'["{ADDRESS}"]', f'["{ADDRESS}","latest"]'),
        ("eth_estimateGas", "[{}]", '[{},"latest"]'),
        ("eth_getBlockByNumber", '["0xa",true]', '["0x0a",true]'),
        ("eth_getBlockByNumber", '["0xa",true]', '["0xa",false]'),
        ("eth_getBlockByNumber", '["0xa",true]', '["0xa",1]'),
        ("eth_getBlockByNumber", '["0xa",true]', "[10,true]"),
        ("eth_getProof", f'["{ADDRESS}",["0x0"],"0x1"]', f'["{ADDRESS}",["0x00"],"0x1"]'),
        ("eth_feeHistory", '["0x1","0x5",[1.0]]', '["0x1","0x5",[1]]'),
        ("debug_traceBlockByNumber", '["0x1",{"tracer":"0xA"}]', '["0x1",{"tracer":"0xa"}]'),
        ("eth_call", '[{"to":"0xa"}]', '[{"to":"0xa"},"latest",{}]'),
    ],
)
def test_questions_that_are_kept_apart(method: str, one: str, other: str) -> None:
    assert key(method, one.encode()) != key(method, other.encode())


@pytest.mark.parametrize(
    "params",
    [
        '[{"to":"0xa","to":"0xb"}]',  # which one?
        '[{"to":"0xa","TO":"0xb"}]',  # some nodes take keys in any letter case
        '[{"0xAB":1,"0xab":2}]',
        '[{"to":"\\u0030xa"}]',
        '[{"to":-0}]',
        '[{"to":"0xa"},null]',
        '[{"to":"0xa"},"LATEST"]',
        '[{"to":"0xa"},"0x01"]',
        '[{"to":"0xa"},{"blockNumber":"0x1","blockHash":"0x1"}]',
        '["0xa"]',
        "[]",
        "[{},1,2,3,4,5]",
        "{}",
        "[",
    ],
)
def test_unusual_calls_are_not_kept(params: str) -> None:
    assert key("eth_call", params.encode()) == b""


@pytest.mark.parametrize("commitment", ["{}", "[]", "1", "null", '"recent"', '{"finalized":1}'])
def test_a_commitment_that_is_none_is_left_to_the_node(commitment: str) -> None:
    params = f'["x",{{"commitment":{commitment}}}]'.encode()
    assert key("getBalance", params, "solana") == b""


def test_networks_and_methods_do_not_share_keys() -> None:
    keys = {
        ask(network, "evm", method, b"[]").key
        for network in ("a/b", "a/c")
        for method in ("eth_chainId", "net_version")
    }
    assert len(keys) == 4


def test_letter_case_means_something_on_solana() -> None:
    assert key("getAccountInfo", b'["AbC"]', "solana") != key("getAccountInfo", b'["abc"]', "solana")
    same = [b'["AbC"]', b'["AbC",{}]', b'["AbC", {"commitment":"finalized"}]']
    assert len({key("getAccountInfo", params, "solana") for params in same}) == 1


_WORDS = [
    '"0x"', '"0x0"', '"0x00"', '"0x1f"', '"0x1F"', '"0xABc"', '"0X1"', '"latest"', '"pending"', '"safe"', '"Latest"',
    f'"0x{"ab" * 32}"', f'"0x{"aB" * 32}"', f'"0x{"ab" * 20}"', f'"0x1{"0" * 64}"', "true", "false", "null", "1", '""',
    "{}", "[]", '"0x1\\u0030"', '"0xg"', f'{{"blockHash":"0x{"ab" * 32}"}}',
]  # fmt: skip
_PLAIN_RULES = [rule for rule in RULES["evm"].values() if rule.plain is not None]


@settings(max_examples=2000, deadline=None)
@given(
    st.sampled_from(_PLAIN_RULES),
    st.lists(st.sampled_from(_WORDS), max_size=4),
    st.sampled_from([",", ", ", ",,"]),
    st.sampled_from(["", " ", "]", "\n"]),
)
def test_params_that_are_canonical_already_are_read_the_same(
    rule: Rule, words: list[str], comma: str, tail: str
) -> None:
    params = f"[{comma.join(words)}]{tail}".encode()
    quick = ask_plainly(rule, b"m\x00=" + params, params)
    if quick is not None:
        assert quick == ask_fully("evm", rule, b"m\x00", params)


def test_the_simple_reads_have_a_plain_form() -> None:
    for method in ("eth_getBalance", "eth_getCode", "eth_getTransactionReceipt", "eth_getBlockByNumber"):
        assert RULES["evm"][method].plain is not None
    for method in ("eth_call", "eth_getLogs", "eth_getStorageAt"):
        assert RULES["evm"][method].plain is None
    assert all(rule.plain is None for rule in RULES["solana"].values())
