"""What goes onto the development chain: which contracts, at which addresses, and the sample data.

Pure description for deploy.py, without input or output beyond reading the artifacts. A new sample contract is added
here and in `Contracts`. The canonical addresses are those the ERC-4337 contracts have on every public chain.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from capstan.devnet.accounts import PAYMASTER_OWNER_INDEX, PAYMASTER_SIGNER_INDEX
from capstan.devnet.artifacts import call_data, create2_address, load_contract, load_package_contract
from capstan.devnet.errors import DevnetError
from capstan.devnet.install import NodeProject
from capstan.devnet.models import DevAccount

ETHER = 10**18
TRANSFER_GAS = 21_000
CALL_GAS = 300_000
# The largest, EntryPoint 0.6, takes 5.3 million. A limit is free: only what is used is paid and counted.
DEPLOY_GAS = 8_000_000

PAYMASTER_DEPOSIT = 100 * ETHER
PAYMASTER_STAKE = ETHER
# ERC-7562 SREP-010: a stake counts when it is locked for at least a day.
UNSTAKE_DELAY_SECONDS = 86_400

ERC20_HOLDERS = 10
ERC20_SAMPLE_AMOUNT = 10_000
NO_SALT = bytes(32)


class Canonical(msgspec.Struct, frozen=True):
    """An ERC-4337 release: its npm alias, and where its contracts are on every chain."""

    package: str
    entry_point: str
    entry_point_salt: str
    factory: str
    paymaster_contract: str


RELEASES = {
    "0.6": Canonical(
        package="aa06",
        entry_point="0x5FF137D4b0FDCD49DcA30c7CF57E578a026d2789",
        entry_point_salt="00" * 32,
        factory="0x9406Cc6185a346906296840746125a0E44976454",
        paymaster_contract="VerifyingPaymasterV06",
    ),
    "0.7": Canonical(
        package="aa07",
        entry_point="0x0000000071727De22E5E9d8BAf0edAc6f37da032",
        entry_point_salt="90d8084deab30c2a37c45e8d47f49f2f7965183cb6990a98943ef94940681de3",
        factory="0x91E60e0613810449d098b0b5Ec8b51A0FE8c8985",
        paymaster_contract="VerifyingPaymasterV07",
    ),
    "0.8": Canonical(
        package="aa08",
        entry_point="0x4337084D9E255Ff0702461CF8895CE9E3b5Ff108",
        entry_point_salt="0a59dbff790c23c976a548690c27297883cc66b4c67024f9117b0238995e35e9",
        factory="0x13E9ed32155810FDbd067D4522C492D6f68E5944",
        paymaster_contract="VerifyingPaymasterV07",
    ),
}


class TokenPlan(msgspec.Struct, frozen=True):
    """A sample ERC-20 and its price in US dollars with 8 decimals."""

    name: str
    symbol: str
    decimals: int
    price: int


FEED_DECIMALS = 8
NATIVE_FEED = "ETH / USD"
NATIVE_PRICE = 2_500_00000000
TOKENS = (
    TokenPlan(name="Capstan Sample Token", symbol="CAP", decimals=18, price=1_25000000),
    TokenPlan(name="Capstan Sample Dollar", symbol="CUSD", decimals=6, price=1_00000000),
)


class Contract(msgspec.Struct, frozen=True):
    """A contract that is deployed through the deterministic deployment proxy."""

    name: str
    salt: bytes
    init_code: bytes
    address: str


class Call(msgspec.Struct, frozen=True):
    """A transaction that follows the deployment."""

    label: str
    to: str
    data: bytes
    value: int = 0


class Contracts(msgspec.Struct, frozen=True):
    """Every contract of the plan. The maps are keyed by entry point version, the token lists run as `TOKENS`."""

    entry_points: dict[str, Contract]
    factories: dict[str, Contract]
    paymasters: dict[str, Contract]
    tokens: tuple[Contract, ...]
    erc721: Contract
    erc1155: Contract
    native_feed: Contract
    token_feeds: tuple[Contract, ...]

    def all(self) -> list[Contract]:
        """In the order of deployment: factories and paymasters need their entry point."""
        return [
            *self.entry_points.values(),
            *self.factories.values(),
            *self.paymasters.values(),
            *self.tokens,
            self.erc721,
            self.erc1155,
            self.native_feed,
            *self.token_feeds,
        ]


def contracts(project: NodeProject, proxy: str, accounts: Sequence[DevAccount]) -> Contracts:
    """Every contract with its code and address. Raises `DevnetError` when an address is not the canonical one."""
    entry_points = {}
    factories = {}
    paymasters = {}
    signer, owner = accounts[PAYMASTER_SIGNER_INDEX].address, accounts[PAYMASTER_OWNER_INDEX].address
    for version, release in RELEASES.items():
        code = load_package_contract(project, release.package, "EntryPoint").init_code()
        salt = bytes.fromhex(release.entry_point_salt)
        entry_points[version] = _canonical(proxy, f"EntryPoint {version}", code, salt, release.entry_point)
        code = load_package_contract(project, release.package, "SimpleAccountFactory").init_code(
            ["address"], [release.entry_point]
        )
        factories[version] = _canonical(proxy, f"SimpleAccountFactory {version}", code, NO_SALT, release.factory)
        code = load_contract(release.paymaster_contract).init_code(
            ["address", "address", "address"], [release.entry_point, signer, owner]
        )
        paymasters[version] = _contract(proxy, f"VerifyingPaymaster {version}", code)
    return Contracts(
        entry_points=entry_points,
        factories=factories,
        paymasters=paymasters,
        tokens=tuple(_token(proxy, token) for token in TOKENS),
        erc721=_collection(proxy, "SampleERC721", "Capstan Sample Collectibles", "CAPN"),
        erc1155=_collection(proxy, "SampleERC1155", "Capstan Sample Items", "CAPI"),
        native_feed=_feed(proxy, NATIVE_FEED, NATIVE_PRICE),
        token_feeds=tuple(_feed(proxy, feed_description(token), token.price) for token in TOKENS),
    )


def feed_description(token: TokenPlan) -> str:
    return f"{token.symbol} / USD"


def calls(contracts: Contracts, accounts: Sequence[DevAccount]) -> list[Call]:
    """The deposits and stakes of the paymasters, and the sample tokens for the first accounts."""
    return [*_paymaster_calls(contracts), *_token_calls(contracts, accounts), *_nft_calls(contracts, accounts)]


def _paymaster_calls(contracts: Contracts) -> list[Call]:
    planned = []
    for version, paymaster in contracts.paymasters.items():
        planned += [
            Call(f"deposit of paymaster {version}", paymaster.address, call_data("deposit()"), PAYMASTER_DEPOSIT),
            Call(
                f"stake of paymaster {version}",
                paymaster.address,
                call_data("addStake(uint32)", UNSTAKE_DELAY_SECONDS),
                PAYMASTER_STAKE,
            ),
        ]
    return planned


def _token_calls(contracts: Contracts, accounts: Sequence[DevAccount]) -> list[Call]:
    return [
        Call(
            f"mint {token.symbol} to account {index}",
            contract.address,
            call_data("mint(address,uint256)", accounts[index].address, ERC20_SAMPLE_AMOUNT * 10**token.decimals),
        )
        for token, contract in zip(TOKENS, contracts.tokens, strict=True)
        for index in range(ERC20_HOLDERS)
    ]


def _nft_calls(contracts: Contracts, accounts: Sequence[DevAccount]) -> list[Call]:
    # Account 0 holds ids 1 and 2, account 1 holds 3 and 4, account 2 holds 5 and 6: each an odd and an even one.
    unique = [
        Call(
            f"mint ERC-721 id {token_id}",
            contracts.erc721.address,
            call_data("mint(address,uint256)", accounts[(token_id - 1) // 2].address, token_id),
        )
        for token_id in range(1, 7)
    ]
    # Id 1 is held by three accounts, id 2 by account 0 alone.
    shared = [
        Call(
            f"mint ERC-1155 id {token_id} to account {index}",
            contracts.erc1155.address,
            call_data("mint(address,uint256,uint256)", accounts[index].address, token_id, amount),
        )
        for token_id, index, amount in ((1, 0, 100), (1, 1, 50), (1, 2, 25), (2, 0, 5))
    ]
    return [*unique, *shared]


def _contract(proxy: str, name: str, init_code: bytes, salt: bytes = NO_SALT) -> Contract:
    return Contract(name=name, salt=salt, init_code=init_code, address=create2_address(proxy, salt, init_code))


def _canonical(proxy: str, name: str, init_code: bytes, salt: bytes, address: str) -> Contract:
    contract = _contract(proxy, name, init_code, salt)
    if contract.address != address:
        raise DevnetError(f"{name} would be at {contract.address}, not at its canonical address {address}")
    return contract


def _token(proxy: str, token: TokenPlan) -> Contract:
    code = load_contract("SampleERC20").init_code(
        ["string", "string", "uint8"], [token.name, token.symbol, token.decimals]
    )
    return _contract(proxy, f"SampleERC20 {token.symbol}", code)


def _collection(proxy: str, contract: str, name: str, symbol: str) -> Contract:
    return _contract(proxy, contract, load_contract(contract).init_code(["string", "string"], [name, symbol]))


def _feed(proxy: str, description: str, price: int) -> Contract:
    code = load_contract("SamplePriceFeed").init_code(["string", "int256"], [description, price])
    return _contract(proxy, f"SamplePriceFeed {description}", code)
