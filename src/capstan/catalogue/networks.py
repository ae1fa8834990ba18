"""The networks Capstan knows: the typed model, the built-in data and the lookups.

Settings use `builtin_table` and `family_table` to lay an operator's values over `networks.toml`; everything else asks
a `Networks` object, which the composition root makes with `Settings.catalogue()`. Nothing here talks to a node, and
nothing here knows an upstream: a network counts as configured because the caller says so.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from eth_hash.auto import keccak
from msgspec import Meta

from capstan.core.errors import NotFound

Kind = Literal["mainnet", "testnet"]
Family = Literal["evm", "solana"]
BlockProof = Literal["header", "bloom", "receipts"]
EntryPointVersion = Literal["0.6", "0.7", "0.8", "0.9"]
DataFee = Literal["none", "op_stack", "scroll", "arbitrum"]

NAME_PATTERN = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*/[a-z0-9]+(-[a-z0-9]+)*")

_EVM_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")
_EVM_HASH = re.compile(r"0x[0-9a-fA-F]{64}")
_BASE58 = re.compile(r"[1-9A-HJ-NP-Za-km-z]{32,44}")

_ADDRESS_FIELDS = ("multicall3", "wrapped_native", "native_usd_feed", "uniswap_v3_factory", "uniswap_v2_factory")
_ADDRESS_LISTS = ("quote_tokens",)
_ADDRESS_TABLES = ("entry_points", "factories", "paymasters", "price_feeds")


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts of one network. Addresses are EIP-55 checksummed (EVM) or base58 (Solana); empty means none known."""

    chain: Annotated[str, Meta(description="First half of the name.")]
    network: Annotated[str, Meta(description="Second half of the name.")]
    chain_id: Annotated[int, Meta(ge=1, le=2**53 - 1, description="Chain id of the network (EIP-155).")]
    kind: Annotated[Kind, Meta(description="Whether its coins have value; test keys may use test networks only.")]
    family: Annotated[Family, Meta(description="Which JSON-RPC dialect its nodes speak.")]
    native_symbol: Annotated[str, Meta(min_length=1, max_length=16, description="Symbol of the native coin.")]
    native_decimals: Annotated[int, Meta(ge=0, le=36, description="Decimals of the native coin.")]
    block_time_ms: Annotated[
        int, Meta(ge=1, le=3_600_000, description="Typical time between blocks; paces polling and time estimates.")
    ]
    finality_depth: Annotated[
        int,
        Meta(ge=0, le=100_000, description="Blocks until a block counts as final where a node lacks `finalized`."),
    ]
    eip1559: Annotated[bool, Meta(description="Whether blocks carry a base fee and transactions may name fee caps.")]
    block_proofs: Annotated[
        tuple[BlockProof, ...],
        Meta(
            description="What its blocks prove, for `verify`: `header`, their hash is that of the standard fields;"
            " `bloom`, every log is in the bloom; `receipts`, the receipts root covers every log."
        ),
    ]
    data_fee: Annotated[
        DataFee,
        Meta(
            description="Whose contract tells the fee for data on the parent chain, which operations of the bundler"
            " must cover; `none`: there is no such fee."
        ),
    ]
    default_testnet: Annotated[
        bool, Meta(description="The test network a `svc_test_` key gets where a path names only the chain.")
    ]
    default_in_development: Annotated[
        bool, Meta(description="The network that takes the place of the default test network in development mode.")
    ]
    genesis_hash: Annotated[
        str, Meta(description="Hash of the first block, to recognise a node of another network; empty: not checked.")
    ]
    multicall3: Annotated[str, Meta(description="Address of Multicall3; empty: reads are sent one by one.")]
    wrapped_native: Annotated[str, Meta(description="Contract or mint of the wrapped native coin.")]
    native_usd_feed: Annotated[str, Meta(description="Chainlink feed of the native coin in US dollars.")]
    entry_points: Annotated[
        dict[EntryPointVersion, str], Meta(description="ERC-4337 entry point of each version the bundler serves.")
    ]
    factories: Annotated[
        dict[EntryPointVersion, str], Meta(description="Account factory that new smart wallets use, by entry point.")
    ]
    paymasters: Annotated[
        dict[EntryPointVersion, str], Meta(description="Our verifying paymaster, by entry point version.")
    ]
    price_feeds: Annotated[
        dict[str, str], Meta(description="Chainlink US dollar feeds of tokens: token address = feed address.")
    ]
    quote_tokens: Annotated[
        tuple[str, ...],
        Meta(
            description="Tokens in which pools quote others, besides the wrapped native coin; each needs a price feed."
        ),
    ]
    uniswap_v3_factory: Annotated[str, Meta(description="Factory of Uniswap v3 pools, for prices; empty: not used.")]
    uniswap_v2_factory: Annotated[str, Meta(description="Factory of Uniswap v2 pairs, for prices; empty: not used.")]

    @property
    def name(self) -> str:
        """`chain/network`, the name used in paths, settings and logs."""
        return f"{self.chain}/{self.network}"


EntryT = TypeVar("EntryT", bound=Network)


class UnknownChain(NotFound):
    """No network of that chain is known."""


class UnknownNetwork(NotFound):
    """The chain is known, that network of it is not."""


class NetworkNotConfigured(NotFound):
    """The network is known, but this server has no upstream for it."""


class Networks:
    """Every known network, and which of them this server serves.

    The lookups raise errors that answer 404 with a message for the caller. `served` holds the names of the networks
    that have an upstream.
    """

    def __init__(self, known: Iterable[Network], *, served: Collection[str] = (), development: bool = False) -> None:
        self._known = {(entry.chain, entry.network): entry for entry in known}
        self._served = {key: entry for key, entry in self._known.items() if entry.name in served}
        self._chains: dict[str, tuple[Network, ...]] = {}
        for entry in self._known.values():
            self._chains[entry.chain] = (*self._chains.get(entry.chain, ()), entry)
        self._mainnets = {chain: _main_network(entries) for chain, entries in self._chains.items()}
        self._testnets = {chain: _test_network(entries, development) for chain, entries in self._chains.items()}

    def __iter__(self) -> Iterator[Network]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    @property
    def chains(self) -> tuple[str, ...]:
        """The names of all known chains."""
        return tuple(self._chains)

    @property
    def served(self) -> tuple[Network, ...]:
        """The networks this server has an upstream for."""
        return tuple(self._served.values())

    def get(self, chain: str, network: str) -> Network:
        """The network, if it is known and served."""
        found = self._served.get((chain, network))
        return found if found is not None else self._require_served(self.describe(chain, network))

    def describe(self, chain: str, network: str) -> Network:
        """The network, if it is known; it need not be served."""
        found = self._known.get((chain, network))
        if found is not None:
            return found
        names = ", ".join(entry.network for entry in self.for_chain(chain))
        raise UnknownNetwork(f'unknown network "{network}" of chain "{chain}"; known: {names}')

    def for_chain(self, chain: str) -> tuple[Network, ...]:
        """All known networks of a chain."""
        found = self._chains.get(chain)
        if found is None:
            raise UnknownChain(f'unknown chain "{chain}"; known: {", ".join(self._chains)}')
        return found

    def mainnet(self, chain: str) -> Network:
        """The network a live key gets where a path names only the chain."""
        self.for_chain(chain)
        found = self._mainnets[chain]
        if found is None:
            raise UnknownNetwork(f'chain "{chain}" has no main network; name one with ?network=')
        return self._require_served(found)

    def default_testnet(self, chain: str) -> Network:
        """The network a test key gets where a path names only the chain."""
        self.for_chain(chain)
        found = self._testnets[chain]
        if found is None:
            raise UnknownNetwork(f'chain "{chain}" has no default test network; name one with ?network=')
        return self._require_served(found)

    def _require_served(self, entry: Network) -> Network:
        if (entry.chain, entry.network) in self._served:
            return entry
        others = [other.network for other in self.served if other.chain == entry.chain]
        rest = f"; configured for {entry.chain}: {', '.join(others)}" if others else ""
        raise NetworkNotConfigured(f"{entry.name} is known but not configured on this server{rest}")


def _main_network(entries: tuple[Network, ...]) -> Network | None:
    mains = [entry for entry in entries if entry.kind == "mainnet"]
    named = [entry for entry in mains if entry.network == "mainnet"]
    if named:
        return named[0]
    return mains[0] if len(mains) == 1 else None


def _test_network(entries: tuple[Network, ...], development: bool) -> Network | None:
    if development:
        for entry in entries:
            if entry.default_in_development:
                return entry
    for entry in entries:
        if entry.default_testnet:
            return entry
    return None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    families: dict[str, dict[str, Any]]
    templates: dict[str, dict[str, Any]]
    networks: dict[str, dict[str, Any]]


@cache
def _file() -> _File:
    text = resources.files("capstan.catalogue").joinpath("networks.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _File)


def family_table(family: str) -> Mapping[str, Any]:
    """What a network of the family starts from; empty for a family that does not exist."""
    return _file().families.get(family, {})


def builtin_table(name: str) -> Mapping[str, Any] | None:
    """The facts of a built-in network over its template and family, as plain values; `None` if it is not built in."""
    own = _file().networks.get(name)
    if own is None:
        return None
    template = _file().templates[own["template"]] if "template" in own else {}
    merged = {**family_table(own["family"]), **template, **own}
    merged.pop("template", None)
    return merged


def builtin_names() -> tuple[str, ...]:
    """The names of all built-in networks, in the order of the file."""
    return tuple(_file().networks)


@cache
def builtin_networks() -> tuple[Network, ...]:
    """Every built-in network. Raises `ValueError` if the shipped file is wrong, which its tests prevent."""
    found = []
    for name in builtin_names():
        chain, network = name.split("/")
        entry = msgspec.convert({"chain": chain, "network": network, **(builtin_table(name) or {})}, Network)
        faults = network_faults(entry)
        if faults:
            raise ValueError(f"networks.toml: {name}: {faults[0][0]}: {faults[0][1]}")
        found.append(entry)
    return tuple(found)


def network_faults(entry: Network) -> list[tuple[str, str]]:
    """What contradicts itself in a network: pairs of key and reason. Empty when all is well."""
    faults: list[tuple[str, str]] = []
    check = _evm_address_fault if entry.family == "evm" else _solana_address_fault
    for field in _ADDRESS_FIELDS:
        text = getattr(entry, field)
        if text and (reason := check(text)):
            faults.append((field, reason))
    for field in _ADDRESS_TABLES:
        for key, text in getattr(entry, field).items():
            reason = check(text) or (check(key) if field == "price_feeds" else None)
            if reason:
                faults.append((f'{field}."{key}"', reason))
    for field in _ADDRESS_LISTS:
        faults += [
            (f"{field}[{place}]", reason) for place, text in enumerate(getattr(entry, field)) if (reason := check(text))
        ]
    pattern = _EVM_HASH if entry.family == "evm" else _BASE58
    if entry.genesis_hash and not pattern.fullmatch(entry.genesis_hash):
        faults.append(("genesis_hash", "must be a 32-byte hash as the network's nodes write it"))
    if entry.family == "solana" and entry.eip1559:
        faults.append(("eip1559", "must be false on a Solana network"))
    if entry.family == "solana" and entry.block_proofs:
        faults.append(("block_proofs", "must be empty on a Solana network"))
    for flag in ("default_testnet", "default_in_development"):
        if getattr(entry, flag) and entry.kind != "testnet":
            faults.append((flag, 'must be false on a network of kind "mainnet"'))
    return faults


def checksummed(entry: EntryT) -> EntryT:
    """The network with every EVM address in EIP-55 form. Call it after `network_faults` found nothing."""
    if entry.family != "evm":
        return entry
    changes: dict[str, Any] = {field: to_checksum(getattr(entry, field)) for field in _ADDRESS_FIELDS}
    for field in _ADDRESS_TABLES:
        changes[field] = {key: to_checksum(text) for key, text in getattr(entry, field).items()}
    for field in _ADDRESS_LISTS:
        changes[field] = tuple(to_checksum(text) for text in getattr(entry, field))
    changes["price_feeds"] = {to_checksum(key): text for key, text in changes["price_feeds"].items()}
    return msgspec.structs.replace(entry, **changes)


def to_checksum(address: str) -> str:
    """The address with the letter case of EIP-55; empty stays empty."""
    digits = address[2:].lower()
    marks = keccak(digits.encode()).hex()
    return address[:2] + "".join(c.upper() if mark >= "8" else c for c, mark in zip(digits, marks, strict=False))


def _evm_address_fault(text: str) -> str | None:
    if not _EVM_ADDRESS.fullmatch(text):
        return f'must be an address of 0x and 40 hexadecimal digits, not "{text}"'
    mixed = text[2:] != text[2:].lower() and text[2:] != text[2:].upper()
    if mixed and text != to_checksum(text):
        return f'"{text}" has a wrong EIP-55 checksum; check it for a typing error, or write it in lower case'
    return None


def _solana_address_fault(text: str) -> str | None:
    return None if _BASE58.fullmatch(text) else f'must be a base58 address, not "{text}"'
