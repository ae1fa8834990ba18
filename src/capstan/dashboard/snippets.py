"""One JSON-RPC call as text to copy: for curl, viem and web3.py.

Used by the playground and the first-run page. Pure. Values are quoted for the language they are put into, whatever
they hold.
"""

import json
import shlex
from typing import Any

import msgspec


class Target(msgspec.Struct, frozen=True):
    """Where a call goes, and with which key."""

    url: str
    key: str


def every_snippet(target: Target, method: str, params: Any) -> list[tuple[str, str]]:
    """The call in every language, with its name."""
    return [
        ("curl", curl(target, method, params)),
        ("viem", viem(target, method, params)),
        ("web3.py", web3_py(target, method, params)),
    ]


def curl(target: Target, method: str, params: Any) -> str:
    """For a shell."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, ensure_ascii=False)
    return (
        f"curl -s {shlex.quote(target.url)} \\\n"
        f"  -H {shlex.quote(f'X-API-Key: {target.key}')} \\\n"
        f"  -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(body)}"
    )


def viem(target: Target, method: str, params: Any) -> str:
    """For JavaScript."""
    return (
        'import { createPublicClient, http } from "viem";\n\n'
        "const client = createPublicClient({\n"
        f"  transport: http({json.dumps(target.url)}, {{\n"
        f'    fetchOptions: {{ headers: {{ "X-API-Key": {json.dumps(target.key)} }} }},\n'
        "  }),\n"
        "});\n"
        f"console.log(await client.request({{ method: {json.dumps(method)}, params: {json.dumps(params)} }}));"
    )


def web3_py(target: Target, method: str, params: Any) -> str:
    """For Python."""
    return (
        "from web3 import HTTPProvider, Web3\n\n"
        f"headers = {{'X-API-Key': {target.key!r}, 'Content-Type': 'application/json'}}\n"
        f"web3 = Web3(HTTPProvider({target.url!r}, request_kwargs={{'headers': headers}}))\n"
        f"print(web3.provider.make_request({method!r}, {params!r}))"
    )
