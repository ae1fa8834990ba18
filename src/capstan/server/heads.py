"""The heads of requests, and a memory of those that were seen before.

Clients send the same head again and again: only the body differs. `HeadMemo` remembers, by its exact bytes, what the
HTTP parser made of a head, so that the protocol need not run the parser for it. The same bytes mean the same at the
start of a message, whichever connection they come from; the protocol looks here only when its connection is at such a
start. What is remembered is what follows from the bytes: never who the caller is, which the key directory is asked for
every time; what follows from a caller is kept beside it. Only heads without anything unusual are remembered, and only
such a length of body as the head itself says.

Heads hold API keys. They are kept in memory only, bounded, and shown nowhere.
"""

from hashlib import sha256
from urllib.parse import unquote

from capstan.access.models import Caller
from capstan.chain.registry import Network
from capstan.core.memo import Memo
from capstan.limits.models import Limits
from capstan.rpc.treatments import Treatment

Headers = list[tuple[bytes, bytes]]

END = b"\r\n\r\n"

# Headers that change how a request is treated; with one of them it takes the longer of the two ways.
_SPECIAL = frozenset({b"x-request-id", b"x-forwarded-for", b"x-explain"})
# With one of these a message is not simply a head and as many bytes as its Content-Length says.
_FRAMING = frozenset({b"transfer-encoding", b"upgrade", b"expect", b"trailer", b"te"})
_LONGEST_HEAD = 4096
# The object, its list of headers and their place in the dict.
_OVERHEAD = 1500
_MEMO_BYTES = 4 * 1024 * 1024


class RequestHead:
    """The head of one request to the gateway, read once."""

    __slots__ = ("digest", "headers", "path", "standing", "target")

    def __init__(self, target: bytes, headers: Headers) -> None:
        self.target = target
        self.headers = headers
        # The path of the target, without the query, as ASGI would give it.
        self.path = unquote(target.partition(b"?")[0].decode("latin-1"))
        # The SHA-256 of the key, when the head carries one key and nothing that is treated specially.
        self.digest = _only_key(headers)
        # What the fast path found out for the caller of this head. Holds as long as that caller does.
        self.standing: Standing | None = None


class Standing:
    """A caller with what follows from it and the target: the network with its methods, the limits of the account."""

    __slots__ = ("account_id", "caller", "limits", "methods", "network")

    def __init__(self, caller: Caller, network: Network, limits: Limits, methods: dict[bytes, Treatment]) -> None:
        self.caller = caller
        self.network = network
        self.limits = limits
        self.methods = methods
        self.account_id = caller.account_id


def _only_key(headers: Headers) -> bytes | None:
    keys: list[bytes] = []
    for name, value in headers:
        if name == b"x-api-key":
            keys.append(value)
        elif name == b"authorization":
            scheme, _, credentials = value.strip().partition(b" ")
            if scheme.lower() != b"bearer":
                return None
            keys.append(credentials.strip())
        elif name in _SPECIAL:
            return None
    # Two keys, even the same one twice, are for the longer way.
    return sha256(keys[0]).digest() if len(keys) == 1 else None


class KnownHead:
    """A head that was seen, and how many bytes of body follow it."""

    __slots__ = ("body_bytes", "head")

    def __init__(self, head: RequestHead, body_bytes: int) -> None:
        self.head = head
        self.body_bytes = body_bytes


class HeadMemo:
    """Heads by their bytes, for all connections of a server."""

    def __init__(self, max_bytes: int = _MEMO_BYTES) -> None:
        self._memo: Memo[bytes, KnownHead] = Memo(max_bytes, lambda text, _: 3 * len(text) + _OVERHEAD)
        # The head with exactly these bytes, if it is known. Bound once: it is asked for every request.
        self.get = self._memo.get
        self.get_young = self._memo.get_young

    def __len__(self) -> int:
        return len(self._memo)

    def learn(self, piece: bytes, head: RequestHead, body: bytes) -> None:
        """Remember the head of a message that the parser found to be all of `piece`, if it is an ordinary one.

        To be called only for a POST in HTTP/1.1, on a connection that stays open, whose first byte is that of `piece`.
        """
        end = piece.find(END) + len(END)
        if end > _LONGEST_HEAD or len(piece) - end != len(body):
            return
        text = piece[:end]
        if _is_regular(text) and _says_length(head.headers, len(body)):
            self._memo.put(text, KnownHead(head, len(body)))

    def clear(self) -> None:
        """Forget everything. Called when the settings were loaded again."""
        self._memo.clear()


def _is_regular(text: bytes) -> bool:
    """Whether all lines end with CRLF and nothing else could be taken for the end of a line."""
    lines = text.count(b"\r\n")
    return text.count(b"\r") == lines == text.count(b"\n")


def _says_length(headers: Headers, length: int) -> bool:
    lengths = [value for name, value in headers if name == b"content-length"]
    return lengths == [b"%d" % length] and not any(name in _FRAMING for name, _ in headers)
