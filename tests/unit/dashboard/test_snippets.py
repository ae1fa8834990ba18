"""Calls as text to copy: what they hold is quoted for the language, whatever it is."""

import ast
import json
import shlex

from capstan.dashboard.snippets import Target, curl, every_snippet, viem, web3_py

TARGET = Target("http://127.0.0.1/v1/rpc/ethereum/devnet", "svc_test_x")
HOSTILE = ["it's", '"; rm -rf /; "', "$(id)", "\\", "</script>", {"a": None, "b": [True, 1.5]}]


def test_a_shell_gets_the_very_call() -> None:
    words = shlex.split(curl(TARGET, "eth_call", HOSTILE).replace("\\\n", " "))
    assert words[:3] == ["curl", "-s", TARGET.url]
    assert words[4] == "X-API-Key: svc_test_x"
    assert json.loads(words[-1]) == {"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": HOSTILE}


def test_python_gets_the_very_call() -> None:
    tree = ast.parse(web3_py(TARGET, "it's", HOSTILE))
    (call,) = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node) == "make_request"]
    assert [ast.literal_eval(argument) for argument in call.args] == ["it's", HOSTILE]


def test_javascript_gets_the_call_as_json_which_it_understands() -> None:
    line = viem(TARGET, "eth_call", HOSTILE).splitlines()[-1]
    assert f"params: {json.dumps(HOSTILE)} " in line
    assert [name for name, _ in every_snippet(TARGET, "eth_call", [])] == ["curl", "viem", "web3.py"]


def _name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""
