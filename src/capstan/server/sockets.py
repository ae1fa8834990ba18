"""Takes the address that the service listens on.

Called by the composition root and by `capstan dev`. Kept apart from the listener so that the short commands, which know
its error, need not load the web framework.
"""

import ipaddress
import socket

_BACKLOG = 2048


class PortInUse(Exception):
    """The address to listen on cannot be had."""


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket, or `PortInUse` with what to do.

    A shared one can be had by several processes of one user on Linux, among which the kernel spreads connections. It
    does not listen yet: whoever has it gets no connection before it can serve.
    """
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        family = socket.AF_INET
    try:
        listener = _shared(host, port, family) if shared else _listening(host, port, family)
    except OSError as error:
        raise PortInUse(
            f"cannot listen on {host}:{port} ({error.strerror or error}); "
            "choose another address with --host/--port or CAPSTAN_SERVER__PORT"
        ) from error
    listener.setblocking(False)
    return listener


def _listening(host: str, port: int, family: socket.AddressFamily) -> socket.socket:
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def _shared(host: str, port: int, family: socket.AddressFamily) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((host, port))
    except BaseException:
        made.close()
        raise
    return made
