"""The JSON-RPC errors of a Solana node: codes, messages and data as Agave's `rpc` and `custom_error` give them.

Handlers raise `RpcError`; the dispatcher is the only place that turns one into a reply.
"""

from __future__ import annotations

from typing import Any

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
BLOCK_CLEANED_UP = -32001
PREFLIGHT_FAILURE = -32002
SIGNATURE_VERIFICATION_FAILURE = -32003
BLOCK_NOT_AVAILABLE = -32004
NO_SNAPSHOT = -32008
UNSUPPORTED_TRANSACTION_VERSION = -32015
MIN_CONTEXT_SLOT_NOT_REACHED = -32016


class RpcError(Exception):
    """A failure the caller is told about. `data` is left out of the reply when it is None, as Agave does."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            body["data"] = self.data
        return body


def parse_error() -> RpcError:
    return RpcError(PARSE_ERROR, "Parse error")


def invalid_request(message: str = "Invalid request") -> RpcError:
    return RpcError(INVALID_REQUEST, message)


def method_not_found() -> RpcError:
    return RpcError(METHOD_NOT_FOUND, "Method not found")


def invalid_params(message: str) -> RpcError:
    return RpcError(INVALID_PARAMS, message)


def internal_error(message: str = "Internal error") -> RpcError:
    return RpcError(INTERNAL_ERROR, message)


def block_cleaned_up(slot: int, first_available: int) -> RpcError:
    return RpcError(
        BLOCK_CLEANED_UP,
        f"Block {slot} cleaned up, does not exist on node. First available block: {first_available}",
    )


def preflight_failure(description: str, simulation: dict[str, Any]) -> RpcError:
    return RpcError(PREFLIGHT_FAILURE, f"Transaction simulation failed: {description}", simulation)


def signature_verification_failure() -> RpcError:
    return RpcError(SIGNATURE_VERIFICATION_FAILURE, "Transaction signature verification failure")


def block_not_available(slot: int) -> RpcError:
    return RpcError(BLOCK_NOT_AVAILABLE, f"Block not available for slot {slot}")


def no_snapshot() -> RpcError:
    return RpcError(NO_SNAPSHOT, "No snapshot")


def unsupported_transaction_version(version: int) -> RpcError:
    return RpcError(
        UNSUPPORTED_TRANSACTION_VERSION,
        f"Transaction version ({version}) is not supported by the requesting client. Please try the request again "
        f'with the following configuration parameter: "maxSupportedTransactionVersion": {version}',
    )


def min_context_slot_not_reached(context_slot: int) -> RpcError:
    return RpcError(
        MIN_CONTEXT_SLOT_NOT_REACHED,
        "Minimum context slot has not been reached",
        {"contextSlot": context_slot},
    )
