"""What the signers of the bundler have on each network, for `capstan doctor`. Never shows a key."""

from typing import Literal

from capstan.bundler.signers import Signer, load_signers
from capstan.chain.errors import ChainError
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.accounts import UnusableKey
from capstan.core.clock import SystemClock
from capstan.core.decimals import ETHER_DECIMALS, GWEI_DECIMALS, format_units
from capstan.core.errors import ApiError
from capstan.core.hexes import parse_quantity, to_checksum_address
from capstan.settings import NetworkSettings, Settings
from capstan.wiring import network_specs

State = Literal["ok", "warning", "failed"]
Row = tuple[str, State, str]


async def signer_balances(settings: Settings) -> list[Row]:
    """For each network with a bundler and each signer: a name, how it stands, and what it has."""
    try:
        signers = load_signers(settings.bundler.signers, settings.bundler.keystore_password)
    except UnusableKey as error:
        return [("signers", "failed", str(error))]
    networks = [each for each in settings.served.values() if each.family == "evm" and each.entry_points]
    if not networks:
        return [("signers", "ok", f"{len(signers)} known; no network with entry points is served")]
    registry = ChainRegistry(open_session(), SystemClock())
    try:
        registry.replace(network_specs(settings))
        return [await _balance(settings, registry, each, signer) for each in networks for signer in signers]
    finally:
        await registry.close()


async def _balance(settings: Settings, registry: ChainRegistry, network: NetworkSettings, signer: Signer) -> Row:
    shown = to_checksum_address(signer.address)
    name = f"signer {network.name} {shown}"
    try:
        pool = registry.get(network.chain, network.network).pool
        wei = parse_quantity(await pool.request_as(str, "eth_getBalance", [shown, "latest"]), lenient=True)
    except (ApiError, ChainError, ValueError) as error:
        return name, "failed", f"its balance cannot be read: {error}"
    has = f"{format_units(wei, ETHER_DECIMALS)} {network.native_symbol}"
    least = settings.bundler.least_balance_gwei * 10**GWEI_DECIMALS
    if wei < least:
        needed = f"{format_units(least, ETHER_DECIMALS)} (bundler.least_balance_gwei)"
        return name, "failed", f"has {has}, less than {needed}, and sends no bundles; send coins to it"
    return name, "ok", f"has {has}"
