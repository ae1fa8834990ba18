"""JSON from strangers: metadata documents, answers of price sources. Bounded in depth, and without floats.

Called where a document comes from an address that a user or a contract chose. The standard library's reader recurses as
deep as the document nests, and libraries raise the interpreter's limit until the stack overflows; so the depth is
looked at first.
"""

import json
from collections.abc import Callable
from typing import Any, NoReturn

from capstan.core.jsonrpc import deeper_than

_DEEPEST = 64


def read_json(text: str, *, number: Callable[[str], Any]) -> Any:
    """The value in the text; `number` makes a value of the text of each number.

    Raises `ValueError` for what is not JSON, and for what nests deeper than 64 levels.
    """
    if deeper_than(text.encode("utf-8", "replace"), _DEEPEST):
        raise ValueError(f"nested deeper than {_DEEPEST} levels")
    # Control characters inside strings are against the standard, and common.
    return json.loads(text, parse_float=number, parse_int=number, parse_constant=_refuse, strict=False)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
