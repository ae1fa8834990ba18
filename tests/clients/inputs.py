"""What the client scripts are given, and the run of one of them."""

from __future__ import annotations

from typing import Any

from eth_abi.abi import encode
from eth_account import Account
from eth_utils.crypto import keccak

from tests.support.development import Development
from tests.support.javascript import Report

MULTICALL = "0xcA11bde05977b3631167028862bE2a173976CA11"
# The accounts that the clients send from; no other test may.
VIEM_SENDER, ETHERS_SENDER, WEB3_SENDER = 3, 4, 5
VIEM_FEED_SENDER, ETHERS_FEED_SENDER, WEB3_FEED_SENDER = 6, 9, 10


class Ran:
    """A script that ran: what it was given and what it reported."""

    def __init__(self, given: dict[str, Any], report: Report) -> None:
        self.given = given
        self.report = report


def inputs(development: Development, sender: int) -> dict[str, Any]:
    """What the scripts need to know."""
    document = development.document
    owner = document["accounts"][sender]
    factory_call = keccak(text="createAccount(address,uint256)")[:4] + encode(
        ["address", "uint256"], [owner["address"], 5]
    )
    return {
        "url": f"{development.base_url}/rpc/ethereum/devnet",
        "feed_url": feed_url(development),
        "api_key": development.api_key,
        "chain_id": document["chain_id"],
        "private_key": owner["private_key"],
        "addresses": [account["address"] for account in document["accounts"]],
        "token": document["tokens"][0]["address"],
        "multicall": MULTICALL,
        "entry_point": document["entry_points"]["0.7"],
        "factory": document["factories"]["0.7"],
        "init_code": document["factories"]["0.7"].lower() + factory_call.hex(),
        # Nobody's, so that what arrives there is from this script alone.
        "receiver": Account.create().address,
    }


def feed_url(development: Development) -> str:
    """The address of the WebSocket feed, with the key in it, as browsers must give it."""
    return f"{development.document['ws_url']}/v1/ws/ethereum/devnet?apiKey={development.api_key}"
