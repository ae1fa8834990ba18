"""The fee that rollups take for data on their parent chain, as gas that `preVerificationGas` must cover.

Called by estimation, and by the check of what is sent. The fee is asked of the contract that the rollup provides for
it; what is asked about is the transaction as it would be sent with this operation alone. Chains without such a fee
are not asked.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from capstan.catalogue.networks import DataFee as DataFeeKind
from capstan.chain.errors import EveryUpstreamFailed, NodeError
from capstan.chain.registry import Network
from capstan.core.hexes import keccak256, parse_data, to_data
from capstan.userops.abi import Malformed, Reader, address_word, dynamic, members, word

# The network with its upstreams of now: a reload may replace it.
FindNetwork: TypeAlias = Callable[[], Network]

# GasPriceOracle of the OP Stack, L1GasPriceOracle of Scroll, NodeInterface of Arbitrum: each at a place of its own.
_ORACLES = {
    "op_stack": bytes.fromhex("420000000000000000000000000000000000000f"),
    "scroll": bytes.fromhex("5300000000000000000000000000000000000002"),
    "arbitrum": bytes.fromhex("00000000000000000000000000000000000000c8"),
}
_GET_FEE = keccak256(b"getL1Fee(bytes)")[:4]
_GET_GAS = keccak256(b"gasEstimateL1Component(address,bool,bytes)")[:4]
# What the transaction has besides its data: chain, nonce, fees, gas limit, target, and a signature.
_TRANSACTION_BYTES = 180


class DataFee(Protocol):
    """What the data of a bundle costs on the parent chain."""

    async def gas(self, entry_point: bytes, calldata: bytes, gas_price: int) -> int:
        """As gas at this price, in wei. Raises the failures of the pool."""
        ...


class NoDataFee:
    """Data costs nothing beyond the gas of the chain itself."""

    async def gas(self, entry_point: bytes, calldata: bytes, gas_price: int) -> int:
        """See `DataFee`."""
        return 0


class OracleDataFee:
    """Asks the oracle for a fee in wei: OP Stack and Scroll."""

    def __init__(self, network: FindNetwork, oracle: bytes) -> None:
        self._network = network
        self._oracle = oracle

    async def gas(self, entry_point: bytes, calldata: bytes, gas_price: int) -> int:
        """See `DataFee`."""
        transaction = incompressible(_TRANSACTION_BYTES) + calldata
        answer = await _ask(self._network(), self._oracle, _GET_FEE + members([dynamic(transaction)]))
        return -(-answer.number(0) // max(1, gas_price))


class ArbitrumDataFee:
    """Asks the node, which answers in gas at its own base fee. What is offered above that makes no difference there."""

    def __init__(self, network: FindNetwork) -> None:
        self._network = network

    async def gas(self, entry_point: bytes, calldata: bytes, gas_price: int) -> int:
        """See `DataFee`."""
        question = _GET_GAS + members([address_word(entry_point), word(0), dynamic(calldata)])
        answer = await _ask(self._network(), _ORACLES["arbitrum"], question)
        return answer.number(0)


def data_fee_of(kind: DataFeeKind, network: FindNetwork) -> DataFee:
    """The way in which a network takes its fee for data."""
    if kind == "none":
        return NoDataFee()
    return ArbitrumDataFee(network) if kind == "arbitrum" else OracleDataFee(network, _ORACLES[kind])


def incompressible(length: int) -> bytes:
    """Bytes without zeros and without pattern: what a signature that is not there yet will be to a compressor.

    The same for the same length.
    """
    found = b""
    while len(found) < length:
        found += keccak256(b"capstan.incompressible" + len(found).to_bytes(4, "big")).replace(b"\0", b"\1")
    return found[:length]


async def _ask(network: Network, oracle: bytes, data: bytes) -> Reader:
    params = [{"to": to_data(oracle), "data": to_data(data)}, "latest"]
    try:
        answer = parse_data(await network.pool.request_as(str, "eth_call", params))
        reader = Reader(answer)
        reader.number(0)
    except (NodeError, ValueError, Malformed) as error:
        raise EveryUpstreamFailed(f"No upstream of {network.name} tells the fee for data.") from error
    return reader
