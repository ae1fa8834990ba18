"""The subscriptions of one socket to a Solana network: `accountSubscribe`, `slotSubscribe` and their like.

A session on a Solana network has one of these. Each subscription joins a topic at the network's WebSocket upstreams,
which all sockets share, and gets an id of ours: ids of upstreams change when one dies, ours do not. Results are passed
on as the node wrote them. A signature subscription ends with its answer, as on a node.
"""

import secrets
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Raw

from capstan.chain.errors import EveryUpstreamFailed, NodeError
from capstan.chain.topics import Member, Topics
from capstan.core import jsonrpc
from capstan.core.frames import text_frame
from capstan.core.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, LIMIT_EXCEEDED, METHOD_NOT_FOUND
from capstan.feed.models import FeedLimits, Late

_KINDS = ("account", "block", "logs", "program", "root", "signature", "slot", "slotsUpdates", "vote")
_SUBSCRIBE = {f"{kind}Subscribe": kind for kind in _KINDS}
_UNSUBSCRIBE = {f"{kind}Unsubscribe": kind for kind in _KINDS}
_SIGNATURE = "signature"
# Numbers that every client can hold exactly, and that cannot be guessed.
_MOST_ID = 2**53


class _Value(msgspec.Struct):
    value: Raw


_value_decoder = msgspec.json.Decoder(_Value)
_id_decoder = msgspec.json.Decoder(tuple[int])


class SolanaSubscriptions:
    """Subscriptions passed to an upstream."""

    def __init__(
        self,
        topics: Callable[[], Topics | None],
        limits: FeedLimits,
        *,
        push: Callable[[bytes], None],
        may_subscribe: Callable[[], bool],
    ) -> None:
        self._topics = topics
        self._limits = limits
        self._push = push
        self._may_subscribe = may_subscribe
        self._members: dict[int, tuple[str, Member]] = {}
        # Asked for, and not answered by an upstream yet: they count against the bound.
        self._joining = 0
        self._ended = False

    def __len__(self) -> int:
        return len(self._members)

    def handles(self, method: str) -> bool:
        return method in _SUBSCRIBE or method in _UNSUBSCRIBE

    def answer(self, method: str, params: bytes, call_id: bytes) -> bytes | Awaitable[Late]:
        if method in _UNSUBSCRIBE:
            return self._unsubscribe(_UNSUBSCRIBE[method], params, call_id)
        if refusal := self._refusal(method):
            return jsonrpc.error_reply(call_id, *refusal)
        return self._subscribe(_SUBSCRIBE[method], params, call_id)

    def end(self) -> None:
        self._ended = True
        for _, member in self._members.values():
            member.leave()
        self._members.clear()

    def _refusal(self, method: str) -> tuple[int, str] | None:
        """Why nothing may be subscribed to now, if so."""
        if self._topics() is None:
            return METHOD_NOT_FOUND, f"{method} is not available: this network has no WebSocket upstream"
        most = self._limits.subscriptions_per_socket
        if len(self._members) + self._joining >= most:
            return LIMIT_EXCEEDED, f"this socket has {most} subscriptions, the most that one may have"
        if not self._may_subscribe():
            message = "messages pushed to this account exceed its compute units per second; subscribe to less"
            return LIMIT_EXCEEDED, message
        return None

    async def _subscribe(self, kind: str, params: bytes, call_id: bytes) -> Late:
        """Join the topic. What it tells is passed on only after the reply has been sent."""
        topics = self._topics()
        assert topics is not None, "looked at before"
        identifier = self._new_id()
        before = b'{"jsonrpc":"2.0","method":"%bNotification","params":{"result":' % kind.encode()
        after = b',"subscription":%d}}' % identifier

        def tell(result: Raw) -> None:
            if identifier not in self._members:
                return
            self._push(text_frame(before + bytes(result) + after))
            if kind == _SIGNATURE and _is_last(result):
                self._leave(identifier)

        self._joining += 1
        try:
            # Without spaces, so that one topic serves clients that write JSON differently.
            params = msgspec.json.format(params, indent=-1)
            member = await topics.join(f"{kind}Subscribe", params, f"{kind}Unsubscribe", tell)
        except NodeError as error:
            return Late(jsonrpc.node_error_reply(call_id, error.raw), _nothing)
        except EveryUpstreamFailed as error:
            return Late(jsonrpc.error_reply(call_id, INTERNAL_ERROR, error.message), _nothing)
        finally:
            self._joining -= 1
        if self._ended:
            member.leave()
            return Late(b"", _nothing)
        self._members[identifier] = (kind, member)
        return Late(jsonrpc.result_reply(call_id, b"%d" % identifier), member.open)

    def _unsubscribe(self, kind: str, params: bytes, call_id: bytes) -> bytes:
        try:
            (identifier,) = _id_decoder.decode(params)
        except msgspec.DecodeError:
            return jsonrpc.error_reply(call_id, INVALID_PARAMS, "params must be an array with the subscription id")
        found = self._members.get(identifier)
        if found is None or found[0] != kind:
            return jsonrpc.error_reply(call_id, INVALID_PARAMS, "Invalid subscription id.")
        self._leave(identifier)
        return jsonrpc.result_reply(call_id, b"true")

    def _leave(self, identifier: int) -> None:
        _, member = self._members.pop(identifier)
        member.leave()

    def _new_id(self) -> int:
        while True:
            identifier = secrets.randbelow(_MOST_ID)
            if identifier not in self._members:
                return identifier


def _nothing() -> None:
    """Nothing begins after an error."""


def _is_last(result: Raw) -> bool:
    """Whether this is the answer to a signature subscription, and not the word that the transaction has come in."""
    try:
        return bytes(_value_decoder.decode(result).value) != b'"receivedSignature"'
    except msgspec.DecodeError:
        return True
