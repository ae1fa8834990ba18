"""The parameters and options that the routes of token and NFT data share, as the API description shows them.

Used by the routes of tokens and NFTs. Patterns are for the description only: the services refuse what does not match in
words of their own.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

from litestar.openapi.spec import Example
from litestar.params import HeaderParameter, Parameter

from capstan.access.models import Caller, Scope
from capstan.answers.encoded import NOT_MODIFIED
from capstan.chain.registry import Network

# The network of a path that names only the chain, for a caller who may use it.
FindNetwork: TypeAlias = Callable[[Caller, str, str | None], Network]

DATA_OPTIONS: dict[str, Any] = {
    "units": "rest.data_read",
    "scopes": (Scope.DATA_READ,),
    "errors": ("upstream_error", "upstream_timeout"),
    "documented_statuses": NOT_MODIFIED,
}
LIST_OPTIONS: dict[str, Any] = {**DATA_OPTIONS, "units": "rest.list"}
ADDRESS: dict[str, Any] = {"pattern": "^0x[0-9a-fA-F]{40}$"}

Chain = Annotated[str, Parameter(description="The chain, such as `ethereum`.", examples=[Example(value="ethereum")])]
NetworkName = Annotated[
    str | None, Parameter(description="The network; without it the key decides: main or default test network.")
]
IfNoneMatch = Annotated[
    str | None, HeaderParameter(name="If-None-Match", description="The tag of the answer that you have.")
]
