"""What a wallet's factory is told, and the address that must come of it.

Called by the wallet service. Every factory Capstan uses has the interface of SimpleAccountFactory: `createAccount` and
`getAddress`, both of owner and salt. For the factories published with the entry points the code of the accounts is
known, so their addresses are computed here as well and held against what the node says. No I/O.
"""

from functools import cache
from importlib import resources

import msgspec

from capstan.core.creation import create2_address
from capstan.core.hexes import keccak256, parse_address, parse_data
from capstan.userops.abi import address_word, dynamic, members, word

_CREATE = keccak256(b"createAccount(address,uint256)")[:4]
_INITIALIZE = keccak256(b"initialize(address)")[:4]
GET_ADDRESS = "getAddress(address,uint256)"


class _Known(msgspec.Struct, frozen=True):
    """A factory of `account_factories.json`."""

    factory: str
    release: str
    implementation: str
    # The creation code of the ERC-1967 proxy that every account is.
    proxy_code: str


def factory_data(owner: bytes, salt: int) -> bytes:
    """The call that creates the wallet: what goes into `factoryData` of its first operation."""
    return _CREATE + address_word(owner) + word(salt)


def computed_address(factory: bytes, owner: bytes, salt: int) -> bytes | None:
    """The address of the wallet by CREATE2, or None when the factory's accounts are not known."""
    known = known_factories().get(factory)
    if known is None:
        return None
    implementation, proxy_code = known
    arguments = members([address_word(implementation), dynamic(_INITIALIZE + address_word(owner))])
    return create2_address(factory, word(salt), proxy_code + arguments)


@cache
def known_factories() -> dict[bytes, tuple[bytes, bytes]]:
    """Implementation and proxy code of the accounts of each known factory."""
    text = resources.files("capstan.catalogue").joinpath("account_factories.json").read_bytes()
    found = msgspec.json.decode(text, type=list[_Known])
    return {
        parse_address(each.factory): (parse_address(each.implementation), parse_data(each.proxy_code)) for each in found
    }
