"""Takes the address that the service listens on.

Called by the composition root and by `capstan dev`. Kept apart from the listener so that the short commands, which know
its error, need not load the web framework.
"""

import ipaddress
import socket

_BACKLOG = 2048


class PortInUse(Exception):
    """The address to listen on cannot be had."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or `PortInUse` with what to do."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        family = socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise PortInUse(
            f"cannot listen on {host}:{port} ({error.strerror or error}); "
            "choose another address with --host/--port or CAPSTAN_SERVER__PORT"
        ) from error
    listener.setblocking(False)
    return listener
