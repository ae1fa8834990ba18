"""What can go wrong between us and a node, and which of it is worth asking another node.

    ChainError
     ├─ UpstreamFailure           the upstream did not do its job; another may
     │   ├─ UpstreamUnreachable   no connection; the call was not delivered
     │   ├─ UpstreamRefused       turned away: 401, 403, 429, a provider's own limit; the call was not executed
     │   ├─ UpstreamDisconnected  the connection ended before the answer was complete
     │   ├─ UpstreamTimeoutError  no complete answer in time
     │   └─ UpstreamBadReply      an answer that is not a JSON-RPC reply to our call
     │       └─ ReplyTooLarge     an answer beyond our bound: the doing of the call, not of the upstream
     └─ NodeError                 the node answered with an error: that is the answer
         └─ NodeUnable            an error of this node rather than of the call; another node may do better
    core.errors.UpstreamError
     └─ EveryUpstreamFailed       502, when nothing above is left to try
    core.errors.UpstreamTimeout
     └─ DeadlinePassed            504

Whether another upstream may be tried is part of the type (`may_retry_elsewhere`), and so is whether the call may have
been executed all the same (`maybe_delivered`), which decides what may be repeated. Raised by `upstream` and `pool`;
capabilities handle `NodeError` and let the last two go through to the caller. Messages name the upstream, never its
address.

The last part of this file is the one place that knows the error texts of nodes and providers.
"""

import re
from typing import ClassVar

from msgspec import Raw

from capstan.chain.models import Family
from capstan.core import errors
from capstan.core.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, ErrorObject


class ChainError(Exception):
    """Base of what a single upstream can do to a call."""

    may_retry_elsewhere: ClassVar[bool]
    maybe_delivered: ClassVar[bool]


class UpstreamFailure(ChainError):
    """The upstream did not do its job. Counts against its health, unless `blames_upstream` is False."""

    may_retry_elsewhere = True
    maybe_delivered = True
    blames_upstream: ClassVar[bool] = True

    def __init__(self, upstream: str, reason: str) -> None:
        super().__init__(f"{upstream}: {reason}")
        self.upstream = upstream
        self.reason = reason


class UpstreamUnreachable(UpstreamFailure):
    """No connection could be made, so nothing was delivered."""

    maybe_delivered = False


class UpstreamRefused(UpstreamFailure):
    """The upstream turned the call away before executing it."""

    maybe_delivered = False


class UpstreamDisconnected(UpstreamFailure):
    """The connection ended before the answer was complete."""


class UpstreamTimeoutError(UpstreamFailure):
    """No complete answer within the time of one attempt."""


class UpstreamBadReply(UpstreamFailure):
    """The answer cannot be used."""


class ReplyTooLarge(UpstreamBadReply):
    """The answer is larger than we accept. A caller can ask for that, and must not drive upstreams out that way."""

    blames_upstream = False


class NodeError(ChainError):
    """The node's own error, final. `raw` is its error object as it came, to be passed on unchanged."""

    may_retry_elsewhere = False
    maybe_delivered = False

    def __init__(self, error: ErrorObject, raw: Raw) -> None:
        super().__init__(f"{error.code}: {error.message}")
        self.code = error.code
        self.message = error.message
        self.data = error.data
        self.raw = raw


class NodeUnable(NodeError):
    """This node lacks the block or state, does not have the method, or is broken inside. Another node may be better."""

    may_retry_elsewhere = True
    maybe_delivered = True


class EveryUpstreamFailed(errors.UpstreamError):
    """No upstream of the network answered."""


class DeadlinePassed(errors.UpstreamTimeout):
    """The deadline of the call passed before any upstream answered."""


_OUTCOMES: tuple[tuple[type[ChainError], str], ...] = (
    (NodeUnable, "unable"),
    (NodeError, "node_error"),
    (UpstreamUnreachable, "unreachable"),
    (UpstreamRefused, "refused"),
    (UpstreamDisconnected, "disconnected"),
    (UpstreamTimeoutError, "timeout"),
    (ReplyTooLarge, "too_large"),
    (UpstreamBadReply, "bad_reply"),
)


def outcome_of(error: ChainError) -> str:
    """A word for what happened, for metrics and explanations."""
    return next((word for kind, word in _OUTCOMES if isinstance(error, kind)), "failed")


# The answers of nodes, by their text. All are compared in lower case.

# The call itself is at fault, or its outcome is the answer. These win over everything below, because a contract chooses
# the text of its own revert.
_FINAL = re.compile(
    r"revert|vm exception|vm execution error|out of gas|invalid opcode|stack underflow|bad instruction"
    r"|insufficient funds|insufficient balance|nonce too|already known|already imported|known transaction|underpriced"
    r"|intrinsic gas|gas too low|exceeds block gas limit|max fee per gas|fee cap|invalid sender|invalid signature"
    r"|invalid argument|invalid params|missing value for required argument|filter not found"
)
# eth_getLogs asked for too much. Final too: another node of the same kind would say the same.
_LOG_RANGE = re.compile(
    r"block range|range too large|range is too (?:large|wide)|max(?:imum)? range|exceeds? the range|range limit"
    r"|returned more than|exceeds max results|query exceeds limit|limit the query to|response size (?:should|exceed)"
    r"|logs matched by query exceeds|limited to (?:a )?[0-9]|too many blocks|blocks distance|range (?:is )?too "
)
# The most blocks it takes, as a plain number, "10,000" or "2K", and a range that it proposes.
_LOG_RANGE_LIMIT = re.compile(
    r"(?:range|limited to a?|up to a?|max(?:imum)?(?: is)?:?)\s*:?\s*([0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,7})(k?)\b"
)
_LOG_RANGE_PROPOSED = re.compile(r"\[(0x[0-9a-f]{1,16}),\s*(0x[0-9a-f]{1,16})\]")
# Too many logs rather than too many blocks: that says nothing about other filters.
_TOO_MANY_LOGS = re.compile(r"results|response size|returned more than|logs matched|too many logs")
# The provider refuses us, not the call: passing this on would tell our caller about our contract with the provider.
_REFUSED = re.compile(
    r"rate.?limit|too many requests|request limit|requests limited"
    r"|(?:request|compute|capacity|quota|credits?).{0,40}exceed"
    r"|exceed.{0,40}(?:quota|capacity|compute|requests?)|reached the (?:quota|free tier)|capacity limit|too much load"
    r"|unauthorized|invalid api key|api key|project id|upgrade your|current plan"
)
_REFUSED_CODES = frozenset({429, -32005, -32029, -32097})
# This node does not have the block, the state or the method.
_UNABLE = re.compile(
    r"header not found|header for hash not found|block not found|unknown block|could not find block|requested block"
    r"|missing trie node|state .{0,60}(?:not available|unavailable)|no state available|historical state"
    r"|state (?:histories|already)|layer stale|pruned|ancient|proof window|not (?:yet )?(?:available|synced)"
    r"|still syncing|unsupported method|method .{0,80}(?:not (?:found|supported|available|whitelisted)|does not exist)"
    r"|execution timeout|execution aborted|request timed? ?out|backend|upstream|internal error|server error"
)
_UNABLE_CODES = frozenset({METHOD_NOT_FOUND, INTERNAL_ERROR, -32001, -32002, -32004})
# https://github.com/anza-xyz/agave/blob/master/rpc-client-api/src/custom_error.rs
_SOLANA_UNABLE_CODES = frozenset(
    {
        -32001,  # block cleaned up
        -32004,  # block not available
        -32005,  # node unhealthy or behind
        -32008,  # no snapshot
        -32009,  # slot missing in long-term storage
        -32010,  # key excluded from the node's secondary indexes
        -32011,  # transaction history not available
        -32014,  # block status not available yet
        -32016,  # minimum context slot not reached
        -32019,  # long-term storage unreachable
        METHOD_NOT_FOUND,
        INTERNAL_ERROR,
    }
)
_METHOD_MISSING = re.compile(
    r"(?:unsupported|unknown) method|method .{0,80}(?:not (?:found|supported|available|whitelisted)|does not exist)"
)
_ALREADY_KNOWN = re.compile(
    r"already known|already imported|known transaction|already in (?:the )?(?:mem)?pool|alreadyknown"
)
# Solana, in the preflight of sendTransaction: the cluster has executed this very transaction.
_ALREADY_PROCESSED = re.compile(r"already been processed|alreadyprocessed")
_NONCE_USED = re.compile(r"nonce too low|nonce is too low|nonce too small|oldnonce|nonce .{0,40}already been used")


def error_from_node(family: Family, upstream: str, error: ErrorObject, raw: Raw) -> ChainError:
    """The exception for an error object that a node or provider sent."""
    kind = _kind_of_solana_error(error) if family == "solana" else _kind_of_evm_error(error)
    if kind is UpstreamRefused:
        return UpstreamRefused(upstream, f"refused with code {error.code}")
    return NodeUnable(error, raw) if kind is NodeUnable else NodeError(error, raw)


def _kind_of_evm_error(error: ErrorObject) -> type[ChainError]:
    text = error.message.lower()
    # Code 3 is geth's "execution reverted", with the revert data.
    if error.code == 3 or _FINAL.search(text) or _LOG_RANGE.search(text):
        return NodeError
    if error.code in _REFUSED_CODES or _REFUSED.search(text):
        return UpstreamRefused
    if error.code in (INVALID_PARAMS, INVALID_REQUEST):
        return NodeError
    if error.code in _UNABLE_CODES or _UNABLE.search(text):
        return NodeUnable
    return NodeError


def _kind_of_solana_error(error: ErrorObject) -> type[ChainError]:
    if error.code in _SOLANA_UNABLE_CODES:
        return NodeUnable
    # Solana's own codes say exactly what happened, so only other codes are judged by their text.
    if -32021 <= error.code <= -32000 or error.code in (INVALID_PARAMS, INVALID_REQUEST):
        return NodeError
    if error.code == 429 or _REFUSED.search(error.message.lower()):
        return UpstreamRefused
    return NodeError


def is_log_range_error(error: NodeError) -> bool:
    """Whether the node says that an eth_getLogs call asked for too many blocks or logs."""
    text = error.message.lower()
    return error.code != 3 and "revert" not in text and _LOG_RANGE.search(text) is not None


def is_log_count_error(error: NodeError) -> bool:
    """Whether a log range error is about the number of logs, which another filter may not have."""
    return _TOO_MANY_LOGS.search(error.message.lower()) is not None


def log_range_limit(error: NodeError) -> int | None:
    """The most blocks of an eth_getLogs call, if the node names them in its refusal."""
    found = _LOG_RANGE_LIMIT.search(error.message.lower())
    if found is None:
        return None
    return int(found.group(1).replace(",", "")) * (1000 if found.group(2) else 1) or None


def log_range_proposed(error: NodeError) -> tuple[str, str] | None:
    """The first and last block of the range that the node proposes in place of one it refused, as it writes them."""
    found = _LOG_RANGE_PROPOSED.search(error.message.lower())
    return None if found is None else (found.group(1), found.group(2))


def is_method_missing(error: NodeError) -> bool:
    """Whether the node says that it does not have the method at all."""
    if error.code in (METHOD_NOT_FOUND, INTERNAL_ERROR, -32000, -32004):
        return error.code == METHOD_NOT_FOUND or _METHOD_MISSING.search(error.message.lower()) is not None
    return False


def is_already_known(error: NodeError) -> bool:
    """Whether the node says that it has the very transaction that was sent."""
    return _ALREADY_KNOWN.search(error.message.lower()) is not None


def is_nonce_used(error: NodeError) -> bool:
    """Whether the node says that a transaction with the nonce is on the chain already."""
    return _NONCE_USED.search(error.message.lower()) is not None


def is_already_processed(error: NodeError) -> bool:
    """Whether a Solana node says that the very transaction that was sent is on the chain."""
    return _ALREADY_PROCESSED.search(error.message.lower()) is not None
