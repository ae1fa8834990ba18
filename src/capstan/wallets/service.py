"""The rules of smart wallets: creating, reading, listing.

Called by the routes. The address comes from the network's factory; the status comes from the chain at the moment of
asking, and is written down so that lists and the next request know it. Nothing here deploys anything: that is done by
the first operation that the wallet's owner signs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec
import structlog

from capstan.access.models import Caller
from capstan.catalogue.networks import Network as NetworkFacts
from capstan.chain.calls.blocks import ask_block
from capstan.chain.calls.models import BlockRef
from capstan.chain.registry import Network
from capstan.core.clock import Clock, iso, utc
from capstan.core.errors import ApiError, Forbidden, InvalidRequest, NotFound, UpstreamError
from capstan.core.hexes import parse_address, to_checksum_address, to_data, to_quantity
from capstan.core.ids import new_id
from capstan.core.redact import quoted
from capstan.userops.versions import NEWEST_FIRST, Version
from capstan.wallets.chain import WalletChain
from capstan.wallets.factories import factory_data
from capstan.wallets.models import (
    CreateWallet,
    Deployment,
    Status,
    Wallet,
    WalletDetail,
    WalletItem,
    WalletList,
    WalletView,
)
from capstan.wallets.salts import salt_number
from capstan.wallets.search import DeploymentSearch
from capstan.wallets.store import TooManyWallets, WalletStore

log = structlog.get_logger(__name__)

# Blocks after which a deployment is not doubted any more, where the network does not say.
_OLD_BLOCKS = 256

# How many wallets the caller's account may have; 0 is no limit.
WalletLimit: TypeAlias = Callable[[Caller], int]


class Reach(msgspec.Struct, frozen=True):
    """How the service finds networks; the composition root provides it."""

    # The network that a chain and an optional network name mean for a caller, with what is known of it. Raises the
    # errors of unknown, unserved and forbidden networks.
    resolve: Callable[[Caller, str, str | None], tuple[Network, NetworkFacts]]
    # The names of all networks that the caller may know of, of one chain and one network of it or of all.
    names: Callable[[Caller, str | None, str | None], Sequence[str]]


class WalletService:
    """Smart wallets of all accounts."""

    def __init__(
        self,
        store: WalletStore,
        chain: WalletChain,
        clock: Clock,
        *,
        reach: Reach,
        limit: WalletLimit,
        needed: Callable[[str], Awaitable[None]],
    ) -> None:
        """`needed` is told of every network on which a wallet is created: its stream is to be followed."""
        self._store = store
        self._chain = chain
        self._clock = clock
        self._reach = reach
        self._limit = limit
        self._needed = needed
        self._search = DeploymentSearch(chain, clock, note=store.mark_deployed)

    async def close(self) -> None:
        """End what goes on in the background."""
        await self._search.close()

    async def create(self, caller: Caller, body: CreateWallet) -> tuple[WalletView, bool]:
        """The wallet of an owner, and whether it is new. Asking again gives the same wallet."""
        owner, salt = _address(body.owner, "owner"), _salt(body.salt)
        network, facts = self._reach.resolve(caller, body.chain, body.network)
        version = _version(facts, body.entry_point_version)
        known = await self._store.find_same(caller.account_id, facts.name, owner, salt)
        # Without a version in the request, a wallet that was created before the network got a newer one is still meant.
        same = [each for each in known if each.version == version] or ([] if body.entry_point_version else known)
        if same:
            return _view(same[0], (await self._statuses(caller, same[:1]))[same[0].id]), False
        factory = parse_address(facts.factories[version])
        address, block, deployed = await self._chain.locate(network, factory, owner, salt)
        wallet = Wallet(
            id=new_id("wal"),
            account_id=caller.account_id,
            chain=facts.chain,
            network=facts.name,
            address=address,
            owner=owner,
            owner_text=body.owner,
            salt=salt,
            factory=factory,
            entry_point=parse_address(facts.entry_points[version]),
            version=version,
            created_at=utc(self._clock),
            absent_at=None if deployed else block.number,
            deployed=deployed,
            deployment=None,
        )
        limit = self._limit(caller)
        await self._needed(wallet.network)
        try:
            stored, created = await self._store.add(wallet, at_most=limit)
        except TooManyWallets:
            raise Forbidden(f"the plan {caller.plan} allows {limit} wallets, and the account has as many") from None
        return _view(stored, "deployed" if deployed else "counterfactual"), created

    async def read(self, caller: Caller, address: str, chain: str | None, network: str | None) -> WalletDetail:
        """The caller's wallet at an address, as the chain has it now."""
        names = self._reach.names(caller, chain, network)
        wallet = await self._store.newest(caller.account_id, _address(address), names)
        if wallet is None:
            named = " ".join(quoted(each) for each in (chain, network) if each is not None)
            where = f" on {named}" if named else ""
            raise NotFound(
                f"there is no wallet {address} of this account{where}; create it with POST /v1/wallets/create"
            )
        connected, _ = self._reach.resolve(caller, wallet.chain, wallet.network.partition("/")[2])
        sight = await self._chain.look(connected, wallet.entry_point, wallet.address)
        deployed = await self._decide(connected, wallet, sight.block, sight.deployed)
        detail = _detail(wallet, address, deployed=deployed, nonce=sight.nonce)
        if not deployed:
            return detail
        deployment = await self._deployment(connected, wallet, sight.block)
        return msgspec.structs.replace(
            detail,
            deployed_at=None if deployment is None else iso(deployment.at),
            deploy_tx=None if deployment is None or deployment.transaction is None else to_data(deployment.transaction),
        )

    async def page(
        self, caller: Caller, *, page: int, limit: int, chain: str | None, network: str | None
    ) -> WalletList:
        """One page of the account's wallets."""
        names = self._reach.names(caller, chain, network)
        wallets, total = await self._store.page(caller.account_id, names, offset=(page - 1) * limit, limit=limit)
        statuses = await self._statuses(caller, wallets)
        return WalletList([_item(wallet, statuses[wallet.id]) for wallet in wallets], page, total)

    # --- what the chain says

    async def _statuses(self, caller: Caller, wallets: Sequence[Wallet]) -> dict[str, Status]:
        """The status of each wallet now. Where a network cannot be asked, the one that was seen last."""
        by_network: dict[str, list[Wallet]] = {}
        for wallet in wallets:
            by_network.setdefault(wallet.network, []).append(wallet)
        found = await asyncio.gather(*(self._on_network(caller, name, group) for name, group in by_network.items()))
        deployed = {wallet_id: state for each in found for wallet_id, state in each.items()}
        return {wallet.id: "deployed" if deployed[wallet.id] else "counterfactual" for wallet in wallets}

    async def _on_network(self, caller: Caller, name: str, wallets: Sequence[Wallet]) -> dict[str, bool]:
        try:
            network, _ = self._reach.resolve(caller, *name.split("/", 1))
            block, present = await self._chain.which_have_code(network, [wallet.address for wallet in wallets])
            decided = [
                await self._decide(network, wallet, block, has) for wallet, has in zip(wallets, present, strict=True)
            ]
        except ApiError as error:
            log.info("wallets.status_from_store", network=name, reason=str(error)[:200])
            decided = [wallet.deployed for wallet in wallets]
        return {wallet.id: state for wallet, state in zip(wallets, decided, strict=True)}

    async def _decide(self, network: Network, wallet: Wallet, block: BlockRef, present: bool) -> bool:
        """Whether the wallet is deployed, by its code at a block; what is new is written down."""
        if present:
            if not wallet.deployed:
                await self._store.mark_deployed(wallet, None)
            return True
        if not wallet.deployed:
            return False
        known = wallet.deployment
        if known is not None and known.block_number > block.number and await _stands(network, known, block):
            # The node that was asked merely does not have that block yet.
            return True
        await self._store.mark_absent(wallet, block_number=block.number)
        return False

    async def _deployment(self, network: Network, wallet: Wallet, block: BlockRef) -> Deployment | None:
        """Where a wallet that has code appeared, by what is stored or by looking for it."""
        known = wallet.deployment
        if known is not None and not await _stands(network, known, block):
            # It was deployed again after a reorganisation that nobody noticed.
            await self._store.mark_absent(wallet, block_number=block.number)
            await self._store.mark_deployed(wallet, None)
            wallet, known = msgspec.structs.replace(wallet, deployment=None, absent_at=None), None
        if known is not None and known.transaction is not None:
            return known
        return await self._search.find(network, wallet, block) or known


async def _stands(network: Network, deployment: Deployment, block: BlockRef) -> bool:
    """Whether the block of a deployment is on the chain whose head is `block`. Old ones are not asked for again."""
    if deployment.block_number < block.number - (network.spec.finality_depth or _OLD_BLOCKS):
        return True
    try:
        now = await ask_block(network, to_quantity(deployment.block_number))
    except UpstreamError:
        # Nobody has a block of that number: the chain is shorter than it was.
        return False
    return now.hash == to_data(deployment.block_hash)


def _address(text: str, parameter: str = "address") -> bytes:
    try:
        return parse_address(text)
    except ValueError as error:
        raise InvalidRequest(f"{parameter}: {error}") from None


def _salt(text: str | None) -> int:
    try:
        return salt_number(text)
    except ValueError:
        raise InvalidRequest("salt: the text cannot be written as UTF-8") from None


def _version(facts: NetworkFacts, wanted: Version | None) -> Version:
    """The entry point version of a new wallet. Raises `NotFound` where the network has none."""
    if facts.family != "evm":
        raise NotFound(f"Network {facts.name} has no smart wallets: only EVM chains do.")
    offered = [each for each in NEWEST_FIRST if each in facts.entry_points and each in facts.factories]
    if not offered:
        raise NotFound(f"Network {facts.name} has no smart wallets: no account factory is configured for it.")
    if wanted is None:
        return offered[0]
    if wanted not in offered:
        raise NotFound(f"entry_point_version: {facts.name} has no factory for {wanted}; it has {', '.join(offered)}")
    return wanted


def _view(wallet: Wallet, status: Status) -> WalletView:
    return msgspec.convert(_shown(wallet, status), WalletView)


def _detail(wallet: Wallet, address: str, *, deployed: bool, nonce: int) -> WalletDetail:
    shown = _shown(wallet, "deployed" if deployed else "counterfactual")
    # The address is repeated as this request spelled it.
    return msgspec.convert({**shown, "address": address, "nonce": nonce}, WalletDetail)


def _shown(wallet: Wallet, status: Status) -> dict[str, object]:
    creation = factory_data(wallet.owner, wallet.salt)
    deployed = status == "deployed"
    return {
        "address": to_checksum_address(wallet.address),
        "owner": wallet.owner_text,
        "chain": wallet.chain,
        "network": wallet.network.partition("/")[2],
        "status": status,
        "factory": to_checksum_address(wallet.factory),
        "salt": to_quantity(wallet.salt),
        "entry_point": to_checksum_address(wallet.entry_point),
        "entry_point_version": wallet.version,
        "factory_data": None if deployed else to_data(creation),
        "init_code": "0x" if deployed else to_data(wallet.factory + creation),
        "created_at": iso(wallet.created_at),
    }


def _item(wallet: Wallet, status: Status) -> WalletItem:
    return WalletItem(
        address=to_checksum_address(wallet.address),
        owner=wallet.owner_text,
        chain=wallet.chain,
        network=wallet.network.partition("/")[2],
        status=status,
        created_at=iso(wallet.created_at),
    )
