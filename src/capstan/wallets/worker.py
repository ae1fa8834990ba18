"""Notices in the canonical stream when wallets appear on the chain, and when a reorganisation takes them back.

One consumer for each network; the durable stream calls it inside the transaction of each block. Two things give a
deployment away: `AccountDeployed` of an entry point, and `Upgraded` (ERC-1967), with which the proxy that a known
account is announces its implementation as it is created, whoever creates it. What leaves neither is found when the
wallet is read, by `search`. It asks no node anything.
"""

from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.chain.follower.models import Applied, Block, Delta, Demand, Log
from capstan.core.hexes import keccak256, to_data
from capstan.userops.events import ACCOUNT_DEPLOYED_TOPIC
from capstan.wallets.factories import known_factories
from capstan.wallets.models import Deployment
from capstan.wallets.store import forget_deployments, note_deployment, take_back_block, watched_among

_DEPLOYED = to_data(ACCOUNT_DEPLOYED_TOPIC)
_UPGRADED = to_data(keccak256(b"Upgraded(address)"))


class WalletConsumer:
    """The durable consumer of one network's stream."""

    def __init__(self, network: str) -> None:
        self._network = network

    @property
    def demand(self) -> Demand:
        """Blocks with their logs."""
        return Demand.LOGS

    async def apply(self, connection: AsyncConnection, delta: Delta) -> None:
        """Write what the block means for wallets, in the stream's transaction."""
        block = delta.block
        if not isinstance(delta, Applied):
            await take_back_block(connection, self._network, _bytes(block.hash), block.number)
            return
        announced, upgraded = _candidates(block.logs or ())
        if not announced and not upgraded:
            return
        for each in await watched_among(connection, self._network, announced.keys() | upgraded.keys()):
            log = announced.get(each.address, {}).get(each.entry_point)
            if log is None and not each.deployed and each.factory in known_factories():
                # One that is there already may be given another implementation, and announces that in the same way.
                log = upgraded.get(each.address)
            if log is not None:
                await note_deployment(connection, self._network, each.address, _deployment(block, log))

    async def reset(self, connection: AsyncConnection) -> None:
        """The chain is another one: the wallets keep their addresses, and none of them is deployed there."""
        await forget_deployments(connection, self._network)


def _candidates(logs: tuple[Log, ...]) -> tuple[dict[bytes, dict[bytes, Log]], dict[bytes, Log]]:
    """Addresses that were announced as deployed, by whom, and addresses that announce an implementation.

    Any contract can emit any event: an announcement counts only if the wallet's own entry point made it, whereas the
    log of an implementation is the wallet's own.
    """
    announced: dict[bytes, dict[bytes, Log]] = {}
    upgraded: dict[bytes, Log] = {}
    for log in logs:
        first = log.topics[0] if log.topics else None
        if first == _DEPLOYED and len(log.topics) == 3:
            announced.setdefault(_bytes(log.topics[2])[12:], {}).setdefault(_bytes(log.address), log)
        elif first == _UPGRADED:
            upgraded.setdefault(_bytes(log.address), log)
    return announced, upgraded


def _deployment(block: Block, log: Log) -> Deployment:
    return Deployment(
        block_number=block.number,
        block_hash=_bytes(block.hash),
        at=datetime.fromtimestamp(block.timestamp, UTC),
        transaction=_bytes(log.transaction_hash),
    )


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])
