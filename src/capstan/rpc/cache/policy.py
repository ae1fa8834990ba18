"""What may be kept, and for how long: first from the call alone, then from the chain, then from the answer.

Called by `gateway`. `ask` reads a call into a `Question`, which does not depend on the chain and can be remembered;
`judge` turns it into a `Policy` for the chain as it is; `after` looks at the answer and binds it to a block, to the
head, or to nothing. Nothing is stored here. When in doubt, all three say that an answer is not kept.
"""

import re
from typing import Any, Final

import msgspec
from msgspec import Raw

from capstan.chain.models import Family
from capstan.core.hexes import parse_quantity
from capstan.core.jsonrpc import NULL
from capstan.rpc.cache.canonical import MAX_PARAMS_BYTES, Reading, Unusual, read, read_log_filter
from capstan.rpc.cache.models import (
    NEVER,
    UNCACHEABLE,
    Binding,
    BlockName,
    HeadView,
    Kind,
    Life,
    Policy,
    Question,
    Shape,
    When,
)
from capstan.rpc.cache.rules import RULES, Rule

# Bound once, for every call compares with them: in Python 3.11 to look up a member of an enum costs as much as a call.
_AT_BLOCK: Final = Kind.AT_BLOCK
_AT_HEAD: Final = Kind.AT_HEAD
_BY_HASH: Final = Kind.BY_HASH
_FOR_EVER: Final = Kind.PERMANENT
_NEVER: Final = Kind.NEVER
_UNTIL_HEAD: Final = Kind.UNTIL_HEAD
_OPAQUE: Final = Shape.OPAQUE
_BLOCK: Final = When.BLOCK
_BLOCK_HASH: Final = When.BLOCK_HASH
_FINAL_ITEM: Final = When.FINAL_ITEM
_HEAD: Final = When.HEAD
_ITEM: Final = When.ITEM
_LOGS: Final = When.LOGS
_NOTHING: Final = When.NOTHING
_SLOT: Final = When.SLOT
# eth_getLogs: final ranges wider than this are kept in parts of this many blocks that begin at its multiples.
LOG_CHUNK_BLOCKS: Final = 1000

_PERMANENT = Policy(Kind.PERMANENT, final=True)
BOUND_TO_MOMENT = Binding(Life.MOMENT)
BOUND_TO_HEAD = Binding(Life.HEAD)


class _Block(msgspec.Struct, gc=False):
    number: str | None = None
    hash: str | None = None


class _Item(msgspec.Struct, gc=False, rename="camel"):
    # Traces have the number as a number.
    block_number: str | int | None = None
    block_hash: str | None = None


class _Items(msgspec.Struct, gc=False, array_like=True):
    first: _Item | None = None


class _Dated(msgspec.Struct, gc=False, rename="camel"):
    block_time: int | None = None


_block_decoder = msgspec.json.Decoder(_Block)
_item_decoder = msgspec.json.Decoder(_Item)
_items_decoder = msgspec.json.Decoder(_Items)
_dated_decoder = msgspec.json.Decoder(_Dated)
_number_decoder = msgspec.json.Decoder(str)


def classify(family: Family, method: str, params: bytes, heads: HeadView) -> Policy:
    """What may be done with the answer to a call made now."""
    return judge(ask("", family, method, params), heads)


def ask(network: str, family: Family, method: str, params: bytes) -> Question:
    """The call as a question about `network`."""
    rule = RULES[family].get(method)
    if rule is None:
        return UNCACHEABLE
    prefix = key_prefix(network, method)
    question = ask_plainly(rule, prefix + b"=" + params, params)
    return ask_fully(family, rule, prefix, params) if question is None else question


def key_prefix(network: str, method: str) -> bytes:
    """What the keys of a method's questions begin with; a canonical text follows."""
    return b"%b\x00%b\x00" % (network.encode(), method.encode())


def ask_plainly(rule: Rule, key: bytes, params: bytes) -> Question | None:
    """The question under the key of these very params, if they are their own canonical text, as they mostly are."""
    found = None if rule.plain is None else rule.plain.fullmatch(params)
    if found is None or len(params) > MAX_PARAMS_BYTES:
        return None
    if rule.hash_group:
        return Question(key, rule.when, rule.shape, hash=_plain_hash(rule, found))
    text = found[rule.block_group] if rule.block_group else None
    if text == b"latest":
        return Question(key, rule.when, rule.shape, "latest")
    if text is None:
        return Question(key, rule.when, rule.shape, brief=rule.absent_is_brief)
    if text == b"pending":
        return UNCACHEABLE
    return Question(key, rule.when, rule.shape, int(text, 16) if text.startswith(b"0x") else text.decode())


def _plain_hash(rule: Rule, found: re.Match[bytes]) -> str | None:
    # The hash of a transaction says nothing of blocks.
    return found[rule.hash_group].decode() if rule.when is _BLOCK_HASH else None


def ask_fully(family: Family, rule: Rule, prefix: bytes, params: bytes) -> Question:
    """The question, whatever the params look like."""
    reading = read(rule, params)
    if reading is None:
        return UNCACHEABLE
    key = prefix + reading.text
    return _solana_question(key, rule, reading) if family == "solana" else _evm_question(key, rule, reading)


def _evm_question(key: bytes, rule: Rule, reading: Reading) -> Question:
    if rule.when is _LOGS:
        return _logs_question(key, reading.arguments[0])
    if rule.when is _BLOCK and reading.block_hash is not None:
        return Question(key, _BLOCK_HASH, rule.shape, hash=reading.block_hash)
    if reading.block == "pending":
        return UNCACHEABLE
    brief = rule.absent_is_brief and not reading.has_block
    block_hash = reading.block_hash if rule.when is _BLOCK_HASH else None
    return Question(key, rule.when, rule.shape, block=reading.block, hash=block_hash, brief=brief)


def _logs_question(key: bytes, log_filter: Any) -> Question:
    try:
        first, last, block_hash = read_log_filter(log_filter)
    except Unusual:
        return UNCACHEABLE
    if block_hash is not None:
        return Question(key, When.BLOCK_HASH, Shape.ITEMS, hash=block_hash)
    if "pending" in (first, last):
        return UNCACHEABLE
    if not isinstance(first, int) or not isinstance(last, int):
        return Question(key, When.LOGS, block="latest")
    if last < first:
        return UNCACHEABLE
    # Of a wide range the parts are kept, by `rpc.logs`; the whole would be the same bytes once more.
    return Question(key, When.LOGS, block=last if last - first < LOG_CHUNK_BLOCKS else "latest")


def _solana_question(key: bytes, rule: Rule, reading: Reading) -> Question:
    if reading.commitment == "processed":
        return UNCACHEABLE
    if rule.when is When.NOTHING:
        return Question(key, When.NOTHING)
    final = reading.commitment == "finalized"
    if rule.when is When.FINAL_ITEM and final:
        return Question(key, When.FINAL_ITEM, rule.shape, timed=True)
    if rule.when is When.SLOT and final:
        last = reading.arguments[len(rule.required) - 1]
        return Question(key, When.SLOT, block=last if type(last) is int else None, timed=True)
    return Question(key, When.HEAD, timed=True)


def judge(question: Question, heads: HeadView, number_of: dict[str, int] | None = None) -> Policy:
    """The policy for a call made now. `number_of` has the numbers of blocks known to be in the chain, by hash."""
    when = question.when
    if when is _BLOCK and question.block == "latest":
        # First, since most calls are of this kind.
        latest = heads.latest_number
        return NEVER if latest is None else Policy(_AT_HEAD, question.shape, latest)
    if when is None:
        return NEVER
    if when is _NOTHING:
        return _PERMANENT
    if when is _FINAL_ITEM:
        return Policy(_BY_HASH, question.shape, final=True)
    if when is _SLOT:
        return _at_slot(question, heads)
    latest = heads.latest_number
    if latest is None and not question.timed:
        return NEVER
    if when is _ITEM:
        return Policy(_AT_HEAD if question.shape is _OPAQUE else _BY_HASH, question.shape)
    if when is _BLOCK_HASH:
        return _at_hash(question, heads, number_of or {})
    if when is _HEAD:
        return Policy(_AT_HEAD, question.shape, number=latest)
    assert latest is not None
    return _at_name(question, question.block, latest, heads)


def _at_name(question: Question, block: BlockName, latest: int, heads: HeadView) -> Policy:
    if isinstance(block, int):
        if block > latest:
            return Policy(_UNTIL_HEAD)
        return _at_number(question.shape, block, heads.hash_at(block), heads, by_hash=False)
    if question.brief:
        return Policy(_UNTIL_HEAD)
    # `safe`, `finalized` and `earliest` name other blocks as time goes by, so they too end with the head.
    return Policy(_AT_HEAD, question.shape, number=latest if block in ("latest", None) else None)


def _at_number(shape: Shape, number: int, block_hash: str | None, heads: HeadView, *, by_hash: bool) -> Policy:
    return Policy(_AT_BLOCK, shape, number, block_hash, by_hash=by_hash, final=_is_final(number, heads))


def _at_hash(question: Question, heads: HeadView, number_of: dict[str, int]) -> Policy:
    assert question.hash is not None
    number = number_of.get(question.hash)
    if number is not None:
        return _at_number(question.shape, number, question.hash, heads, by_hash=True)
    if question.shape is Shape.OPAQUE:
        # Neither we nor the answer can tell whether that block is in the chain.
        return NEVER
    return Policy(Kind.BY_HASH, question.shape, hash=question.hash)


def _at_slot(question: Question, heads: HeadView) -> Policy:
    slot = question.block
    if isinstance(slot, int) and _is_final(slot, heads):
        return Policy(Kind.AT_BLOCK, question.shape, slot, final=True)
    return Policy(Kind.AT_HEAD)


def after(policy: Policy, result: Raw | bytes, heads: HeadView) -> Binding | None:
    """To what the answer is bound, or None when it is not to be kept. `heads` is the chain as it is now."""
    kind = policy.kind
    if kind is _NEVER:
        return None
    if kind is _FOR_EVER:
        return None if _is_null(result) else Binding(Life.FINAL)
    if kind is _UNTIL_HEAD or _is_null(result):
        return BOUND_TO_MOMENT
    try:
        if kind is _AT_HEAD:
            return _bind_to_head(policy, result, heads)
        if kind is _AT_BLOCK:
            return _bind_to_block(policy, result)
        return _bind_to_answer(policy, result, heads)
    except (msgspec.DecodeError, ValueError):
        # Not what such an answer looks like. The caller gets it as it is; nobody else shall.
        return None


def _bind_to_head(policy: Policy, result: Raw | bytes, heads: HeadView) -> Binding | None:
    if policy.number is None or policy.shape is _OPAQUE:
        return BOUND_TO_HEAD
    number, block_hash = _origin(policy.shape, result)
    # From a node that is behind, or on another branch: right for it, and not what we announced.
    if number is not None and (number < policy.number or _contradicts(number, block_hash, heads)):
        return None
    return BOUND_TO_HEAD


def _bind_to_block(policy: Policy, result: Raw | bytes) -> Binding | None:
    number, block_hash = _origin(policy.shape, result)
    if number is not None and number != policy.number:
        return None
    if block_hash is not None and policy.hash is not None and block_hash != policy.hash:
        return None
    if policy.final:
        return Binding(Life.FINAL, policy.number)
    if policy.hash is not None and (policy.by_hash or block_hash is not None):
        return Binding(Life.BLOCK, policy.number)
    # Asked by number and without a word about the hash, this may come from a node on another branch than ours. Our
    # chain would not tell us when that branch ends; so it is not kept beyond the head.
    return BOUND_TO_HEAD


def _bind_to_answer(policy: Policy, result: Raw | bytes, heads: HeadView) -> Binding | None:
    if policy.final:
        return Binding(Life.FINAL) if _dated_decoder.decode(result).block_time is not None else BOUND_TO_MOMENT
    number, block_hash = _origin(policy.shape, result)
    if number is None or block_hash is None:
        return BOUND_TO_MOMENT
    if policy.hash is not None and block_hash != policy.hash:
        return None
    if heads.latest_number is None or _contradicts(number, block_hash, heads):
        return None
    if _is_final(number, heads):
        return Binding(Life.FINAL, number)
    return BOUND_TO_HEAD if heads.hash_at(number) is None else Binding(Life.BLOCK, number)


def _origin(shape: Shape, result: Raw | bytes) -> tuple[int | None, str | None]:
    """The number and the hash of the block that an answer says it is of."""
    item: _Item | None
    if shape is Shape.OPAQUE or shape is Shape.DATED:
        return None, None
    if shape is Shape.NUMBER:
        return parse_quantity(_number_decoder.decode(result), lenient=True), None
    if shape is Shape.BLOCK:
        block = _block_decoder.decode(result)
        item = _Item(block.number, block.hash)
    elif shape is Shape.ITEM:
        item = _item_decoder.decode(result)
    else:
        item = _items_decoder.decode(result).first
    if item is None:
        return None, None
    number = item.block_number
    if isinstance(number, str):
        number = parse_quantity(number, lenient=True)
    return number, None if item.block_hash is None else item.block_hash.lower()


def _contradicts(number: int, block_hash: str | None, heads: HeadView) -> bool:
    known = heads.hash_at(number)
    return known is not None and block_hash is not None and known != block_hash


def _is_final(number: int, heads: HeadView) -> bool:
    return heads.finalized_number is not None and number <= heads.finalized_number


def _is_null(result: Raw | bytes) -> bool:
    # Compared by length first: an answer can be many megabytes, and `bytes` would copy it.
    return len(memoryview(result)) == len(NULL) and bytes(result) == NULL
