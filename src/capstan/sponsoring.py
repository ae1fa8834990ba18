"""Builds gas policies and sponsorship from their parts.

Called by the composition root, of which it is a part: it names concrete classes and connects them, and decides nothing
about requests.
"""

from contextlib import AsyncExitStack

from litestar.handlers import HTTPRouteHandler

from capstan.access.models import Caller
from capstan.access.plans import PlanBook
from capstan.access.reach import NetworkReach
from capstan.catalogue.networks import Network as NetworkFacts
from capstan.chain.calls.blocks import HeadBlocks
from capstan.core.clock import Clock
from capstan.core.errors import InvalidRequest
from capstan.gas.policies.models import DecisionHook
from capstan.gas.policies.routes import policy_routes
from capstan.gas.policies.service import PolicyService, Ports
from capstan.gas.policies.store import PolicyStore
from capstan.gateway import Gateway
from capstan.settings import LiveSettings
from capstan.storage.database import Database


class Sponsoring:
    """Policies and sponsorship, connected."""

    def __init__(self, policies: PolicyService) -> None:
        self._policies = policies

    @classmethod
    async def open(
        cls,
        live: LiveSettings,
        database: Database,
        gateway: Gateway,
        clock: Clock,
        reach: NetworkReach,
        plans: PlanBook,
        stack: AsyncExitStack,
    ) -> "Sponsoring":
        """Build and start; the stack ends it. To be called when the gateway hears of reloads already."""
        blocks = HeadBlocks(gateway.heads, clock)

        async def head(facts: NetworkFacts) -> int:
            return (await blocks.latest(gateway.registry.get(facts.chain, facts.network))).number

        def limit(caller: Caller) -> int:
            return plans.effective(caller.plan, caller.overrides).policies or 0

        def check_hook(_hook: DecisionHook) -> None:
            raise InvalidRequest("decision_hook: not built yet")

        ports = Ports(
            resolve=reach.of_chain,
            head=head,
            limit=limit,
            hook_secret=lambda policy_id: policy_id,
            check_hook=check_hook,
            needed=lambda network, block: None,
        )
        return cls(PolicyService(PolicyStore(database), clock, ports))

    def routes(self) -> list[HTTPRouteHandler]:
        """The handlers of the paths of policies and sponsorship."""
        return policy_routes(self._policies)
