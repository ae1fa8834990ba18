"""The errors of the EVM development chain.

Raised by the modules of this package for the command line, which shows the message to a developer: it says what was
wrong, where, and what to do.
"""


class DevnetError(Exception):
    """The development chain could not be installed, started or set up."""


class NodeRpcError(DevnetError):
    """The node answered a call with a JSON-RPC error."""

    def __init__(self, method: str, code: int, message: str, data: object = None) -> None:
        super().__init__(f"{method}: {message} ({code})")
        self.method = method
        self.code = code
        self.data = data
