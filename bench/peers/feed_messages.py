"""What the servers of bench/feed.py send: a header as long as a real one, and logs. Both carry the time of sending."""

import json
import time

# The fields of a header of the main network that are not told apart here.
_REST = {
    "parentHash": "0x" + "11" * 32,
    "sha3Uncles": "0x" + "22" * 32,
    "miner": "0x" + "33" * 20,
    "stateRoot": "0x" + "44" * 32,
    "transactionsRoot": "0x" + "55" * 32,
    "receiptsRoot": "0x" + "66" * 32,
    "logsBloom": "0x" + "77" * 256,
    "gasLimit": "0x2255100",
    "gasUsed": "0x1122334",
    "timestamp": "0x6af938f3",
    "extraData": "0x" + "88" * 16,
    "mixHash": "0x" + "99" * 32,
    "nonce": "0x0000000000000000",
    "baseFeePerGas": "0x1b02968b",
    "withdrawalsRoot": "0x" + "aa" * 32,
    "parentBeaconBlockRoot": "0x" + "bb" * 32,
}
_TAIL = json.dumps(_REST, separators=(",", ":")).encode()[1:]


def header(number: int) -> bytes:
    """One header. `sentAt` is in nanoseconds of the clock that all processes of a machine share."""
    return b'{"sentAt":%d,"number":"0x%x","hash":"0x%064x",' % (time.monotonic_ns(), number, number) + _TAIL


def raw_log(number: int, index: int, address: str) -> bytes:
    """One log of a transfer."""
    return (
        b'{"sentAt":%d,"address":"%b","topics":["0x%064x"],"data":"0x%064x","blockNumber":"0x%x","transactionHash":'
        b'"0x%064x","transactionIndex":"0x1","blockHash":"0x%064x","logIndex":"0x%x","removed":false}'
    ) % (time.monotonic_ns(), address.encode(), 7, index, number, index, number, index)


def address_of(client: int) -> str:
    """The contract whose logs one client wants."""
    return f"0x{client + 1:040x}"
