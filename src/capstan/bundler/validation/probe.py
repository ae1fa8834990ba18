"""Finds out which EVM a network has, by asking its nodes to run a few bytes.

Called once for each network before its first local validation. Nodes tell neither their fork nor their precompiles, but
both show: a precompile that is not there accepts everything, an opcode that is not there fails.
"""

import msgspec

from capstan.chain.errors import NodeError
from capstan.chain.registry import Network
from capstan.core.hexes import parse_data

# EIP-2537: adding points on BLS12-381. Without the precompile a call to it succeeds with nothing, with it the empty
# input is refused.
_BLS_ADDITION = "0x000000000000000000000000000000000000000b"
# EIP-7939: CLZ(0), stored and returned.
_COUNT_ZEROS = "0x5f1e5f5260205ff3"
# EIP-7951, RIP-7212: a signature that is right. From the test vectors of the EIP.
_P256_ADDRESS = "0x0000000000000000000000000000000000000100"
_P256_INPUT = (
    "0x4cee90eb86eaa050036147a12d49004b6b9c72bd725d39d4785011fe190f0b4d"
    "a73bd4903f0ce3b639bbbf6e8e80d16931ff4bcf5993d58468e8fb19086e8cac"
    "36dbcd03009df8c59286b162af3bd7fcc0450c9aa81be5d10d312af6c66b1d60"
    "4aebd3099c618202fcfe16ae7770b0c49ab5eadf74b754204a3bb6060e44eff3"
    "7618b065f9832de4ca6ca971a7a1adc826d0f7c00181a5fb2ddf79ae00b4e10e"
)
_GAS = "0x30d40"


class Facts(msgspec.Struct, frozen=True):
    """The EVM of a network."""

    fork: str
    # Whether it has P256VERIFY.
    p256: bool


async def probe(network: Network) -> Facts:
    """The facts. Raises what the upstreams raise when none can answer."""
    osaka = await _returns(network, {"data": _COUNT_ZEROS, "gas": _GAS})
    p256 = await _returns(network, {"to": _P256_ADDRESS, "data": _P256_INPUT, "gas": _GAS})
    if osaka is not None and int.from_bytes(osaka, "big") == 256:
        return Facts("osaka", p256=True)
    bls = await _returns(network, {"to": _BLS_ADDITION, "data": "0x", "gas": _GAS})
    return Facts("cancun" if bls == b"" else "prague", p256=bool(p256))


async def _returns(network: Network, transaction: dict[str, str]) -> bytes | None:
    """What a call returns; None when it fails."""
    try:
        return parse_data(await network.pool.request_as(str, "eth_call", [transaction, "latest"]))
    except NodeError:
        return None
