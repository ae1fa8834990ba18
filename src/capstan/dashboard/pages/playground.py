"""The playground: pick a network and a method, run the call, see the reply and how it came about; copy it as code."""

from collections.abc import Callable
from typing import Any

import msgspec
from litestar import get, post
from litestar.handlers import HTTPRouteHandler

from capstan.catalogue.networks import Networks
from capstan.core.errors import ApiError, InvalidRequest
from capstan.dashboard.calls import Calls, parse_params
from capstan.dashboard.desk import Asked, Desk, Page
from capstan.dashboard.menu import Entry
from capstan.dashboard.snippets import Target, every_snippet
from capstan.server.context import context_of

ENTRY = Entry("Playground", "/dashboard/playground", "play")

_PLACEHOLDER = "YOUR_API_KEY"
_NOBODY = "0x0000000000000000000000000000000000000000"
# Methods to begin with, and parameters that work.
EXAMPLES: dict[str, dict[str, list[Any]]] = {
    "evm": {
        "eth_blockNumber": [],
        "eth_chainId": [],
        "eth_gasPrice": [],
        "eth_feeHistory": ["0x5", "latest", [25, 75]],
        "eth_getBalance": [_NOBODY, "latest"],
        "eth_getBlockByNumber": ["latest", False],
        "eth_getTransactionCount": [_NOBODY, "latest"],
        "eth_getCode": [_NOBODY, "latest"],
        "eth_call": [{"to": _NOBODY, "data": "0x"}, "latest"],
        "eth_estimateGas": [{"to": _NOBODY, "value": "0x1"}],
        "eth_getLogs": [{"fromBlock": "latest", "toBlock": "latest"}],
        "eth_getTransactionReceipt": ["0x" + "00" * 32],
    },
    "solana": {
        "getSlot": [],
        "getBlockHeight": [],
        "getVersion": [],
        "getLatestBlockhash": [],
        "getBalance": ["11111111111111111111111111111111"],
        "getAccountInfo": ["11111111111111111111111111111111", {"encoding": "base64"}],
    },
}
_LONGEST_METHOD = 100


def playground_pages(
    desk: Desk, calls: Calls, networks: Callable[[], Networks], *, base_url: str
) -> list[HTTPRouteHandler]:
    """The handlers of the page."""

    def shown(network: str, method: str, params: str) -> dict[str, Any]:
        served = list(networks().served)
        chosen = next((entry for entry in served if entry.name == network), served[0] if served else None)
        examples = EXAMPLES[chosen.family] if chosen is not None else {}
        method = method or next(iter(examples), "")
        text = params or msgspec.json.encode(examples.get(method, [])).decode()
        return {
            "networks": [entry.name for entry in served],
            "network": chosen.name if chosen is not None else "",
            "method": method,
            "params": text,
            "examples": examples,
            "result": None,
            "snippets": _snippets(f"{base_url}/rpc/{chosen.name}", method, text) if chosen is not None else [],
        }

    @get("/playground")
    async def playground(request: Asked) -> Page:
        """The form, filled in from the address."""
        query = desk.query(request)
        values = shown(query.get("network"), query.get("method")[:_LONGEST_METHOD], query.get("params"))
        return desk.page(request, "playground.html", values)

    @post("/playground")
    async def run(request: Asked) -> Page:
        """Run the call."""
        form = desk.form(request)
        values = shown(form.get("network"), form.get("method")[:_LONGEST_METHOD], form.get("params"))
        try:
            if form.get("network") not in values["networks"]:
                raise InvalidRequest("network: choose one that this server serves")
            values["result"] = await calls.run(
                desk.visitor(request).caller,
                form.get("network"),
                form.get("method"),
                parse_params(form.get("params")),
                request_id=context_of(request.scope).request_id,
            )
        except ApiError as error:
            return desk.problem(request, "playground.html", error, values)
        return desk.page(request, "playground.html", values)

    return [playground, run]


def _snippets(url: str, method: str, params: str) -> list[tuple[str, str]]:
    try:
        parsed = parse_params(params)
    except InvalidRequest:
        return []
    return every_snippet(Target(url, _PLACEHOLDER), method, parsed)
