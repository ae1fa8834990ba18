"""A single read on its way to an upstream without a task, from the moment it is sent to the moment it is answered.

Made by whoever wants the reply, begun by the RPC service for a read that was not in memory, sent by the forwarder. When
the upstream answers promptly with a result, the errand is told, and lets the service finish it. Whatever else happens,
it is told to carry on: the service then answers the ordinary way, with this errand for what was done so far.
"""

from msgspec import Raw

from capstan.chain.first import FirstAttempt
from capstan.chain.registry import Network
from capstan.rpc.cache.gateway import Lead, Plan
from capstan.rpc.models import Caller
from capstan.rpc.preparing import PreparedRead


class Errand:
    """One read under way. A `chain.first.Maker`, told one of the two below, once. Neither must raise."""

    # Set when it is sent. The lead is over others who ask the same; None where nothing is shared.
    first: FirstAttempt | None = None
    lead: Lead | None = None

    def __init__(self, caller: Caller, network: Network, read: PreparedRead, plan: Plan, began: float) -> None:
        self.caller: Caller = caller
        self.network = network
        self.read = read
        self.plan = plan
        # When the request came.
        self.began = began

    def answered(self, result: Raw) -> None:
        """The upstream gave a result: `RpcService.finish` makes it the answer."""
        raise NotImplementedError

    def carry_on(self) -> None:
        """The upstream gave no prompt result: call `RpcService.answer` with the errand."""
        raise NotImplementedError
