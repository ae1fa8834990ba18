"""Random user operations, for the tests that compare our codecs with eth-abi and with the real entry points."""

from typing import Any

from hypothesis import strategies as st

from capstan.userops.models import Authorization, UserOperation
from capstan.userops.versions import RELEASES, Version

VERSIONS: tuple[Version, ...] = tuple(RELEASES)

addresses = st.binary(min_size=20, max_size=20).filter(lambda value: not value.startswith(b"\x77\x02"))
words = st.integers(0, 2**256 - 1)
halves = st.integers(0, 2**128 - 1)
texts = st.one_of(st.binary(max_size=70), st.sampled_from([b"", bytes(31), bytes(32), bytes(33), b"\xff" * 500]))

authorizations = st.builds(
    Authorization,
    chain_id=words,
    address=addresses,
    nonce=st.integers(0, 2**64 - 1),
    y_parity=st.integers(0, 1),
    r=words,
    s=words,
)


@st.composite
def operations(draw: st.DrawFn, version: Version, *, delegations: bool = False) -> UserOperation:
    """Operations of one version, with every optional part there or not."""
    release = RELEASES[version]
    limits = halves if release.packed else words
    parts: dict[str, Any] = {}
    if draw(st.booleans()):
        parts |= {"factory": draw(addresses), "factory_data": draw(texts)}
    if delegations and release.delegation and draw(st.booleans()):
        parts |= {"factory": b"\x77\x02", "factory_data": draw(texts), "authorization": draw(authorizations)}
    elif release.authorization and draw(st.booleans()):
        parts["authorization"] = draw(authorizations)
    if draw(st.booleans()):
        parts |= {"paymaster": draw(addresses), "paymaster_data": draw(texts)}
        if release.packed:
            parts |= {"paymaster_verification_gas_limit": draw(halves), "paymaster_post_op_gas_limit": draw(halves)}
        if release.paymaster_signature and draw(st.booleans()):
            parts["paymaster_signature"] = draw(texts)
    return UserOperation(
        sender=draw(addresses),
        nonce=draw(words),
        call_data=draw(texts),
        call_gas_limit=draw(limits),
        verification_gas_limit=draw(limits),
        pre_verification_gas=draw(words),
        max_fee_per_gas=draw(limits),
        max_priority_fee_per_gas=draw(limits),
        signature=draw(texts),
        **parts,
    )
