"""Builds the WebSocket feed from the settings: limits, meter, sessions, handshakes.

Called by the composition root, of which it is a part: it names concrete classes and connects them, and decides nothing
about messages.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from capstan.access.directory import KeyDirectory
from capstan.access.models import Caller
from capstan.core.clock import Clock
from capstan.core.ids import RequestIds
from capstan.feed.meter import PushMeter
from capstan.feed.metrics import FeedCollector
from capstan.feed.models import PUSH_PRICE, FeedLimits
from capstan.feed.service import FeedService
from capstan.feed.session import Surroundings
from capstan.gateway import Gateway
from capstan.limits.models import Limits, RateLimiter
from capstan.rpc.service import RpcService
from capstan.server.handshake import Handshakes
from capstan.server.websocket import SocketLimits, SocketSurroundings, WebSocketConnection, websocket_class
from capstan.settings import Settings
from capstan.usage.recorder import UsageRecorder


def build_feed(
    settings: Settings,
    gateway: Gateway,
    calls: RpcService,
    limiter: RateLimiter,
    usage: UsageRecorder,
    directory: KeyDirectory,
    clock: Clock,
    metrics: CollectorRegistry,
    *,
    limits_of: Callable[[Caller], Limits],
    price: Callable[[str], int],
    request_ids: RequestIds,
) -> FeedService:
    """The feed on these parts. It must be started and closed."""
    chosen = settings.feed
    meter = PushMeter(
        limiter,
        usage,
        limits_of=limits_of,
        price=lambda: price(PUSH_PRICE),
        grace_seconds=chosen.grace_seconds,
    )
    around = Surroundings(
        calls=calls,
        limiter=limiter,
        usage=usage,
        meter=meter,
        clock=clock,
        request_ids=request_ids,
        limits_of=limits_of,
        price=price,
        limits=FeedLimits(
            sockets=chosen.sockets,
            sockets_per_key=chosen.sockets_per_key,
            subscriptions_per_socket=chosen.subscriptions_per_socket,
            calls_in_flight=chosen.calls_in_flight,
            refusals=chosen.refusals,
            replay_blocks=chosen.replay_blocks,
        ),
    )
    feed = FeedService(
        around,
        directory,
        stream_of=gateway.followers.get,
        head_of=gateway.heads.head,
        idle_seconds=chosen.idle_seconds,
    )
    metrics.register(FeedCollector(feed))
    return feed


def build_sockets(settings: Settings, feed: FeedService, handshakes: Handshakes) -> type[WebSocketConnection]:
    """The class of the connections that carry the feed."""
    chosen = settings.feed
    limits = SocketLimits(
        handshake_seconds=chosen.handshake_seconds,
        max_message_bytes=chosen.message_bytes,
        send_buffer_bytes=chosen.send_buffer_bytes,
        ping_seconds=chosen.ping_seconds,
        pong_seconds=chosen.pong_seconds,
        close_seconds=chosen.close_seconds,
    )
    return websocket_class(SocketSurroundings(handshakes=handshakes, feed=feed, limits=limits))
