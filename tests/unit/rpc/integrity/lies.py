"""Ways to be wrong about a chain that look right, for proxies in front of a real node."""

from typing import Any

from capstan.chain.proofs.header import header_hash
from capstan.core.hexes import to_data
from tests.support.lying_node import Lie

NOBODY = "0x" + "99" * 20


def about(method: str, change: Any) -> Lie:
    """Alters the results of one method, other than null, with `change`."""

    def lie(called: str, _params: list[Any], result: Any) -> Any:
        return change(result) if called == method and result is not None else result

    return lie


def in_every_block(change: Any) -> Lie:
    """Alters every block, however it is asked for."""

    def lie(called: str, _params: list[Any], result: Any) -> Any:
        return change(result) if called.startswith("eth_getBlockBy") and result is not None else result

    return lie


def together(*lies: Lie) -> Lie:
    """All of them."""

    def lie(method: str, params: list[Any], result: Any) -> Any:
        for one in lies:
            result = one(method, params, result)
        return result

    return lie


def with_field(name: str, value: Any) -> Any:
    return lambda block: {**block, name: value}


def rebuilt(name: str, value: Any) -> Any:
    """A block that is altered and then given the hash of its new header: consistent, and on no chain."""

    def change(block: dict[str, Any]) -> dict[str, Any]:
        changed = {**block, name: value}
        changed["hash"] = to_data(header_hash(changed))
        changed["transactions"] = [
            {**item, "blockHash": changed["hash"]} if isinstance(item, dict) else item for item in block["transactions"]
        ]
        return changed

    return change


def without_logs(_: list[Any]) -> list[Any]:
    return []


def without_one_log(logs: list[Any]) -> list[Any]:
    return logs[:-1]


def with_other_amount(logs: list[Any]) -> list[Any]:
    """The amount is in the data, which no bloom covers."""
    return [*logs[:-1], {**logs[-1], "data": "0x" + "f" * 64}] if logs else logs


def with_log_of_nobody(logs: list[Any]) -> list[Any]:
    """A log that the bloom rules out."""
    topics = logs[-1]["topics"] if logs else []
    return [*logs[:-1], {**logs[-1], "topics": [*topics[:-1], "0x" + "77" * 32]}] if logs else logs


def with_repeated_log(logs: list[Any]) -> list[Any]:
    """One log twice, the second under the next index."""
    if not logs:
        return logs
    index = hex(int(logs[-1]["logIndex"], 16) + 1)
    return [*logs, {**logs[-1], "logIndex": index}]


def of_another_transaction(logs: list[Any]) -> list[Any]:
    return [{**log, "transactionHash": "0x" + "12" * 32} for log in logs]


def failed(receipt: dict[str, Any]) -> dict[str, Any]:
    return {**receipt, "status": "0x0"}


def other_value(block: dict[str, Any]) -> dict[str, Any]:
    """A block whose last transaction has another value."""
    given = block["transactions"]
    if not given or isinstance(given[-1], str):
        return block
    return {**block, "transactions": [*given[:-1], {**given[-1], "value": "0x123456"}]}


def without_transactions(block: dict[str, Any]) -> dict[str, Any]:
    return {**block, "transactions": []}


def cut_short(name: str = "gasUsed", value: Any = "0x1") -> Any:
    """A block with another value in its header, and without a field that every header has: it has no hash to check."""

    def change(block: dict[str, Any]) -> dict[str, Any]:
        return {key: member for key, member in block.items() if key != "mixHash"} | {name: value}

    return change


def with_a_gap(block: dict[str, Any]) -> dict[str, Any]:
    """A block with another time, and a header that has later fields without an earlier one."""
    return {key: member for key, member in block.items() if key != "baseFeePerGas"} | {
        "timestamp": "0x1",
        "withdrawalsRoot": "0x" + "56" * 32,
    }


def of_mixed_transactions(block: dict[str, Any]) -> dict[str, Any]:
    """An altered transaction, and after the transactions a hash, so that not all of them are given in full."""
    altered = other_value(block)
    if not altered["transactions"] or isinstance(altered["transactions"][0], str):
        return block
    return {**altered, "transactions": [*altered["transactions"], "0x" + "12" * 32]}


def of_hashes(block: dict[str, Any]) -> dict[str, Any]:
    """Hashes of transactions that nobody sent, whatever was asked for."""
    return {**block, "transactions": ["0x" + "12" * 32 for _ in block["transactions"]]}


def of_unknown_type(block: dict[str, Any]) -> dict[str, Any]:
    """A block whose last transaction is altered, and of a type that nobody can encode."""
    altered = other_value(block)
    given = altered["transactions"]
    if not given or isinstance(given[-1], str):
        return block
    return {**altered, "transactions": [*given[:-1], {**given[-1], "type": "0x7f"}]}


def unknown(receipt: dict[str, Any]) -> dict[str, Any]:
    """A receipt that says the opposite, of a type that nobody can encode."""
    return {**failed(receipt), "type": "0x7f", "logs": []}
