"""The client for an upstream, by what its address speaks: HTTP or WebSocket.

Called by the registry, and by the checks of `capstan doctor`. The only place that knows all kinds of clients.
"""

import aiohttp

from capstan.chain.models import Family, UpstreamSpec
from capstan.chain.upstream import Upstream, UpstreamClient
from capstan.chain.websocket import WebSocketUpstream


def client_for(spec: UpstreamSpec, family: Family, session: aiohttp.ClientSession) -> UpstreamClient:
    """A client of the upstream. It connects when it is first called."""
    if is_websocket(spec):
        return WebSocketUpstream(spec, family, session)
    return Upstream(spec, family)


def is_websocket(spec: UpstreamSpec) -> bool:
    """Whether the address speaks WebSocket."""
    return spec.url.lower().startswith(("ws://", "wss://"))
