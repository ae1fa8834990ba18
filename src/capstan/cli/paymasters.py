"""Deploys and funds verifying paymasters, and tells how they stand. Never shows a key.

Called by `capstan gas paymaster` and, for what they have, by `capstan doctor`. Every transaction is signed with
`gas.owner`, sent once, and waited for with a limit; nothing is sent without being asked for.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec

from capstan.chain.errors import ChainError, NodeError
from capstan.chain.pool import UpstreamPool
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.accounts import UnusableKey, accounts, read_key
from capstan.core.clock import SystemClock
from capstan.core.decimals import ETHER_DECIMALS, GWEI_DECIMALS, format_units, parse_units
from capstan.core.errors import ApiError, InvalidRequest, UpstreamError
from capstan.core.hexes import parse_address, parse_data, parse_quantity, to_checksum_address, to_data, to_quantity
from capstan.devnet.artifacts import call_data, load_contract
from capstan.gas.sponsor.signer import PaymasterSigner
from capstan.settings import NetworkSettings, Settings
from capstan.userops.abi import Reader
from capstan.userops.versions import Version
from capstan.wiring import network_specs

State = Literal["ok", "warning", "failed"]
Row = tuple[str, State, str]

_LOOK_SECONDS = 0.5
# Five minutes.
_MOST_LOOKS = 600


class Standing(msgspec.Struct, frozen=True):
    """How one paymaster stands. Amounts are whole coins as text."""

    network: str
    version: Version
    paymaster: str
    deposit: str
    stake: str
    staked: bool
    owner: str
    signer: str
    # Whether the signer of the settings is the one the paymaster asks for; null without gas.signer.
    signer_fits: bool | None


class Paymasters:
    """Works on the paymasters of one network."""

    def __init__(self, settings: Settings, network: NetworkSettings, pool: UpstreamPool) -> None:
        self._settings = settings
        self._network = network
        self._pool = pool

    async def deploy(self, version: Version) -> str:
        """Deploy a paymaster for an entry point, with the signer of the settings. Returns its address."""
        signer = self._key("signer").address
        owner = self._key("owner").address
        name = "VerifyingPaymasterV06" if version == "0.6" else "VerifyingPaymasterV07"
        arguments = [self._entry_point(version), to_checksum_address(signer), to_checksum_address(owner)]
        code = load_contract(name).init_code(["address", "address", "address"], arguments)
        receipt = await self._send(None, code, 0)
        return to_checksum_address(parse_address(receipt["contractAddress"]))

    async def deposit(self, version: Version, amount: int) -> str:
        """Put money into the deposit that pays for operations. Returns the transaction."""
        receipt = await self._send(self._paymaster(version), call_data("deposit()"), amount)
        return str(receipt["transactionHash"])

    async def stake(self, version: Version, amount: int, seconds: int) -> str:
        """Lock a stake at the entry point. Returns the transaction."""
        receipt = await self._send(self._paymaster(version), call_data("addStake(uint32)", seconds), amount)
        return str(receipt["transactionHash"])

    async def withdraw(self, version: Version, amount: int, to: str) -> str:
        """Take money out of the deposit. Returns the transaction."""
        data = call_data("withdrawTo(address,uint256)", to, amount)
        receipt = await self._send(self._paymaster(version), data, 0)
        return str(receipt["transactionHash"])

    async def standing(self, version: Version) -> Standing:
        """How the paymaster of a version stands now."""
        paymaster = self._paymaster(version)
        info = await self._read(self._entry_point(version), call_data("getDepositInfo(address)", paymaster))
        signer = (await self._read(paymaster, call_data("verifyingSigner()"))).address(0)
        owner = (await self._read(paymaster, call_data("owner()"))).address(0)
        mine = self._key("signer").address if self._settings.gas.signer else None
        return Standing(
            network=self._network.name,
            version=version,
            paymaster=paymaster,
            deposit=format_units(info.number(0), ETHER_DECIMALS),
            stake=format_units(info.number(2), ETHER_DECIMALS),
            staked=info.flag(1),
            owner=to_checksum_address(owner),
            signer=to_checksum_address(signer),
            signer_fits=None if mine is None else mine == signer,
        )

    # --- the chain

    async def _send(self, to: str | None, data: bytes, value: int) -> dict[str, Any]:
        """Sign, send and wait. Raises `UpstreamError` when the transaction fails or is not mined in time."""
        owner = self._key("owner")
        transaction: dict[str, Any] = {
            "from": to_checksum_address(owner.address),
            "data": to_data(data),
            "value": to_quantity(value),
            **({} if to is None else {"to": to}),
        }
        gas = await self._quantity("eth_estimateGas", [transaction])
        nonce = await self._quantity("eth_getTransactionCount", [transaction["from"], "pending"])
        price = await self._quantity("eth_gasPrice", [])
        unsigned = {
            "chainId": self._network.chain_id,
            "nonce": nonce,
            "gas": gas + gas // 5,
            "gasPrice": price + price // 4,
            "value": value,
            "data": to_data(data),
            **({} if to is None else {"to": to}),
        }
        signed = accounts().sign_transaction(unsigned, owner.secret)
        sent = await self._ask("eth_sendRawTransaction", [to_data(bytes(signed.raw_transaction))])
        for _ in range(_MOST_LOOKS):
            receipt: dict[str, Any] | None = await self._ask("eth_getTransactionReceipt", [sent])
            if receipt is not None:
                if receipt["status"] != "0x1":
                    raise UpstreamError(f"the transaction {sent} failed on {self._network.name}")
                return receipt
            await asyncio.sleep(_LOOK_SECONDS)
        raise UpstreamError(f"the transaction {sent} is still not in a block; look for it before you send another")

    async def _read(self, to: str, data: bytes) -> Reader:
        return Reader(parse_data(await self._ask("eth_call", [{"to": to, "data": to_data(data)}, "latest"])))

    async def _quantity(self, method: str, params: list[Any]) -> int:
        return parse_quantity(await self._ask(method, params), lenient=True)

    async def _ask(self, method: str, params: list[Any]) -> Any:
        try:
            return msgspec.json.decode(await self._pool.call(method, msgspec.json.encode(params)))
        except NodeError as error:
            raise UpstreamError(f"{self._network.name} refused {method}: {error}") from None

    # --- the settings

    def _key(self, name: Literal["signer", "owner"]) -> PaymasterSigner:
        text = getattr(self._settings.gas, name)
        if not text:
            raise InvalidRequest(f"set gas.{name} first, best as CAPSTAN_GAS__{name.upper()} in the environment")
        try:
            return PaymasterSigner(read_key(text, self._settings.gas.keystore_password, f"gas.{name}"))
        except UnusableKey as error:
            raise InvalidRequest(str(error)) from None

    def _entry_point(self, version: Version) -> str:
        found = self._network.entry_points.get(version)
        if found is None:
            raise InvalidRequest(f"{self._network.name} has no entry point {version} in the settings")
        return found

    def _paymaster(self, version: Version) -> str:
        found = self._network.paymasters.get(version)
        if found is None:
            raise InvalidRequest(f"{self._network.name} has no paymaster {version} in the settings; deploy one first")
        return found


@asynccontextmanager
async def open_paymasters(settings: Settings, network: str) -> AsyncIterator[Paymasters]:
    """The paymasters of a network that is served."""
    found = settings.served.get(network)
    if found is None or found.family != "evm":
        raise InvalidRequest(f"{network} is not an EVM network that is served; see capstan networks list")
    registry = ChainRegistry(open_session(), SystemClock())
    try:
        registry.replace(network_specs(settings))
        yield Paymasters(settings, found, registry.get(found.chain, found.network).pool)
    finally:
        await registry.close()


async def paymaster_findings(settings: Settings) -> list[Row]:
    """For each paymaster of the settings: a name, how it stands, and what to do."""
    places = [(each, version) for each in settings.served.values() for version in each.paymasters]
    if not settings.gas.signer or not places:
        missing = "gas.signer is not set" if not settings.gas.signer else "no network has a paymaster"
        return [("paymasters", "ok", f"nothing is sponsored: {missing}")]
    return [await _finding(settings, network, version) for network, version in places]


async def _finding(settings: Settings, network: NetworkSettings, version: Version) -> Row:
    name = f"paymaster {network.name} {version}"
    try:
        async with open_paymasters(settings, network.name) as paymasters:
            found = await paymasters.standing(version)
    except (ApiError, ChainError, ValueError) as error:
        return name, "failed", f"cannot be read: {error}"
    has = f"has {found.deposit} {network.native_symbol} at the entry point"
    if not found.signer_fits:
        return name, "failed", f"asks for the signature of {found.signer}, which is not gas.signer"
    least = settings.gas.least_deposit_gwei * 10**GWEI_DECIMALS
    if parse_units(found.deposit, ETHER_DECIMALS) < least:
        needed = f"{format_units(least, ETHER_DECIMALS)} (gas.least_deposit_gwei)"
        return name, "warning", f"{has}, less than {needed}; run capstan gas paymaster deposit"
    if not found.staked:
        return name, "warning", f"{has}, and no stake, which bundlers ask for; run capstan gas paymaster stake"
    return name, "ok", has
