"""A single read on its way to an upstream without a task, from the moment it is sent to the moment it is answered.

Made by the RPC service for reads that were not in memory, sent by the forwarder. When the upstream answers promptly
with a result, the service finishes it and the asker gets the body of the reply. Whatever else happens, the asker is
told to carry on: it then lets the service answer the ordinary way, with this errand for what was done so far.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog
from msgspec import Raw

from capstan.chain.first import FirstAttempt
from capstan.chain.registry import Network
from capstan.core.jsonrpc import Call
from capstan.rpc.cache.gateway import Lead, Plan
from capstan.rpc.models import Caller

log = structlog.get_logger(__name__)


class Asker(Protocol):
    """Who wants the reply. Told one of these, once."""

    def replied(self, body: bytes) -> None:
        """This is the reply: status 200, not from memory."""
        ...

    def carry_on(self) -> None:
        """There is no result yet: call `RpcService.answer` with the errand."""
        ...

    def broke(self) -> None:
        """A mistake of ours, which was logged, left the call without a reply."""
        ...


class Errand(msgspec.Struct, eq=False):
    """One read under way. A `chain.first.Maker`."""

    caller: Caller
    network: Network
    call: Call
    plan: Plan
    units: int
    archive: bool
    # When the request came.
    began: float
    # Gives the body of the reply with a result.
    finish: "Callable[[Errand, Raw], bytes]"
    asker: Asker
    # Set when it is sent. The lead is over others who ask the same; None where nothing is shared.
    first: FirstAttempt | None = None
    lead: Lead | None = None

    def answered(self, result: Raw) -> None:
        """The upstream gave a result."""
        try:
            body = self.finish(self, result)
        except Exception:
            # It must not hurt the connection to the upstream, in whose callback we are.
            log.exception("rpc.errand_failed", network=self.network.name, method=self.call.method)
            self.asker.broke()
            return
        self.asker.replied(body)

    def carry_on(self) -> None:
        """The upstream gave no prompt result."""
        self.asker.carry_on()
