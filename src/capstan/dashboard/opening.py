"""Builds the dashboard from its parts.

Called by the composition root, of which it is a part: it names concrete classes and connects them, and decides nothing
about requests. Nobody can sign in to a new installation; the link that makes the first operator is then written to a
file that only the owner of the process can read, and never to the log.
"""

import os
from pathlib import Path
from typing import Any

import structlog
from litestar import Router
from litestar.handlers import HTTPRouteHandler

from capstan.access.models import Caller
from capstan.access.plans import PlanBook
from capstan.access.reach import NetworkReach
from capstan.access.service import AccessService
from capstan.access.store import AccessStore
from capstan.bundler.history import OperationHistory
from capstan.bundler.receipts import receipt_of
from capstan.bundling import Bundlers
from capstan.catalogue.networks import Networks
from capstan.core.clock import Clock, utc_day
from capstan.dashboard.calls import Calls, FindNetwork
from capstan.dashboard.chains import ChainBoard
from capstan.dashboard.desk import Desk
from capstan.dashboard.figures import UsageFigures
from capstan.dashboard.live import LiveOptions, LiveParts
from capstan.dashboard.menu import Menu
from capstan.dashboard.pages import (
    accounts,
    chains,
    keys,
    operations,
    overview,
    playground,
    policies,
    security,
    signing_in,
    start,
    wallets,
    webhook_actions,
    webhooks,
)
from capstan.dashboard.progress import Progress
from capstan.dashboard.rendering import Renderer
from capstan.dashboard.router import build_router
from capstan.dashboard.visitors import Cookies
from capstan.gateway import Gateway
from capstan.limits.models import RateLimiter
from capstan.notifications import Webhooks
from capstan.rpc.service import RpcService
from capstan.settings import LiveSettings
from capstan.signin.building import build_sign_in
from capstan.signin.service import SignIn
from capstan.sponsoring import Sponsoring
from capstan.storage.database import Database
from capstan.usage.store import UsageStore
from capstan.wallets.service import WalletService
from capstan.wallets.store import WalletStore
from capstan.webhooks.log import WebhookLog
from capstan.webhooks.store import WebhookStore

log = structlog.get_logger(__name__)

# In the order of the menu.
_MENU = (
    overview.ENTRY,
    playground.ENTRY,
    webhooks.ENTRY,
    wallets.ENTRY,
    operations.ENTRY,
    policies.ENTRY,
    keys.ENTRY,
    security.PEOPLE,
    security.ENTRY,
    accounts.ENTRY,
    chains.ENTRY,
)


class Dashboard:
    """The dashboard; `open` makes one, `routes` gives its pages."""

    def __init__(
        self,
        live: LiveSettings,
        database: Database,
        gateway: Gateway,
        clock: Clock,
        plans: PlanBook,
        people: SignIn,
        webhooks: Webhooks,
        usage: UsageStore,
        sponsoring: Sponsoring,
        bundlers: Bundlers,
        wallet_service: WalletService,
        base_url: str,
    ) -> None:
        self._live = live
        self._database = database
        self._clock = clock
        self._plans = plans
        self._people = people
        self._webhooks = webhooks
        self._usage = usage
        self._gateway = gateway
        self._sponsoring = sponsoring
        self._bundlers = bundlers
        self._wallets = wallet_service
        self._base_url = base_url
        # Before the limit of a request's time is reached, which would cut a stream off.
        life = max(1.0, min(300.0, live.current.server.request_timeout_seconds - 5.0))
        self._parts = LiveParts(clock, LiveOptions(life_seconds=life))

    @classmethod
    async def open(
        cls,
        live: LiveSettings,
        database: Database,
        gateway: Gateway,
        clock: Clock,
        _reach: NetworkReach,
        plans: PlanBook,
        webhooks: Webhooks,
        usage: UsageStore,
        sponsoring: Sponsoring,
        bundlers: Bundlers,
        wallet_service: WalletService,
        *,
        base_url: str,
    ) -> "Dashboard":
        """The dashboard of this process."""
        settings, origin = live.current, base_url.removesuffix("/v1")
        people = build_sign_in(settings, database, clock, webhooks.seal, origin=origin)
        if settings.dashboard.enabled and await people.nobody_yet():
            file = settings.data_path / signing_in.SETUP_FILE
            _write_private(file, await people.offer_setup())
            log.warning("dashboard_without_operator", read=str(file), or_run="capstan accounts invite --operator")
        return cls(
            live,
            database,
            gateway,
            clock,
            plans,
            people,
            webhooks,
            usage,
            sponsoring,
            bundlers,
            wallet_service,
            base_url,
        )

    def begin_stop(self) -> None:
        """The service is about to stop: no answer may go on for long."""
        self._parts.stop()

    def routes(self, rpc: RpcService, limiter: RateLimiter, find_network: FindNetwork) -> list[Router]:
        """Its pages; none when it is turned off."""
        chosen = self._live.current.dashboard
        if not chosen.enabled:
            return []
        origin = self._base_url.removesuffix("/v1")
        menu = Menu(_MENU)
        cookies = Cookies(secure=origin.startswith("https://"))
        desk = Desk(self._people, Renderer(self._clock), menu, cookies, origin=origin.partition("://")[2])
        access = AccessService(AccessStore(self._database), self._clock, key_limit=self._plans.key_limit)
        paying = self._sponsoring
        figures, progress = UsageFigures(self._usage, self._clock), self._progress(access)
        calls = Calls(rpc, limiter, self._plans, self._clock, find_network=find_network)
        handlers = [
            *signing_in.signing_in_pages(desk, self._people, session_seconds=chosen.session_days * 86_400),
            *overview.overview_pages(
                desk, figures, access, self._plans, progress, delivered_today=self._delivered_today
            ),
            *start.start_pages(desk, access, progress, self._networks, base_url=self._base_url),
            *wallets.wallet_pages(desk, self._wallets, WalletStore(self._database), self._networks),
            *operations.operation_pages(desk, OperationHistory(self._database), paying.history, self._read_receipt),
            *policies.policy_pages(desk, paying.policies, paying.history, paying.sponsor, self._networks),
            *keys.key_pages(desk, access),
            *playground.playground_pages(desk, calls, self._networks, base_url=self._base_url),
            *self._webhook_pages(desk),
            *security.security_pages(desk, self._people),
            *security.people_pages(desk, self._people),
            *chains.chain_pages(desk, self._board(), self._parts),
            *accounts.account_pages(desk, access, self._people, self._plans, WebhookLog(self._database)),
        ]
        return [build_router(desk, handlers)]

    async def _read_receipt(self, caller: Caller, name: str, operation_hash: bytes) -> dict[str, Any] | None:
        chain, _, network = name.partition("/")
        return await receipt_of(self._bundlers.find(caller, chain, network), operation_hash)

    def _board(self) -> ChainBoard:
        paying = self._sponsoring
        return ChainBoard(self._gateway, self._database, self._clock, lambda: paying.funds.seen, paying.warnings)

    def _webhook_pages(self, desk: Desk) -> list[HTTPRouteHandler]:
        service, actions = self._webhooks.service, self._webhooks.operations
        views = webhooks.WebhookViews(desk, WebhookLog(self._database), actions, self._networks)
        return [*webhooks.webhook_pages(views), *webhook_actions.webhook_actions(views, service, actions)]

    async def _delivered_today(self, account_id: str) -> int:
        return await WebhookLog(self._database).delivered_on(account_id, utc_day(self._clock))

    def _progress(self, access: AccessService) -> Progress:
        async def has_key(account_id: str) -> bool:
            return any(key.revoked_at is None for key in await access.keys(account_id))

        return Progress(
            key=has_key,
            request=self._usage.any_use,
            webhook=WebhookStore(self._database).any_of,
            wallet=WalletStore(self._database).any_of,
        )

    def _networks(self) -> Networks:
        return self._live.current.catalogue()


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    draft.replace(path)
