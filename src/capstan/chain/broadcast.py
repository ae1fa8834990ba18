"""Sends a signed transaction to several upstreams at once and tells its hash if any of them has it.

Called by the pool for the methods in `SUBMISSIONS`. A transaction is sent as soon as one node took it, so the first
success is the answer, and the other sendings go on behind it. A node that has the transaction already is a success too.
An error is reported only when no node took the transaction. Methods that give a transaction to one party in private
are not listed here, and so are never spread.
"""

import asyncio
from collections.abc import Callable

import msgspec
from msgspec import Raw

from capstan.chain.errors import (
    ChainError,
    NodeError,
    NodeUnable,
    is_already_known,
    is_already_processed,
    is_nonce_used,
)
from capstan.chain.member import PooledUpstream
from capstan.chain.run import Run
from capstan.chain.transactions import evm_transaction_id, solana_transaction_id

# After a node has rejected the transaction, how long the others may take to accept it all the same.
_GRACE_SECONDS = 2.0
# The attempts keep the deadline themselves; this only makes sure that they are heard first.
_MARGIN_SECONDS = 0.25

# The methods, and how to find from their params what they return: the hash or the signature.
SUBMISSIONS: dict[str, Callable[[bytes], str]] = {
    "eth_sendRawTransaction": evm_transaction_id,
    "sendTransaction": solana_transaction_id,
}


class Broadcast:
    """One transaction on its way to several upstreams."""

    def __init__(self, run: Run, *, width: int, background: set[asyncio.Task[Raw]]) -> None:
        self._run = run
        self._width = max(1, width)
        self._background = background
        self._rejections: list[NodeError] = []

    async def answer(self) -> Raw:
        """The hash, or why no upstream took the transaction."""
        while not self._rejections:
            wave = self._next_wave()
            if not wave:
                if await self._run.wait_for_budget():
                    continue
                break
            taken = await self._first_success(wave)
            if taken is not None:
                return taken
        if self._rejections:
            raise min(self._rejections, key=_vagueness)
        raise self._run.verdict()

    def _next_wave(self) -> list[PooledUpstream]:
        """The next upstreams to give it to: as many as wanted, those out of rotation only if there are no others."""
        wave: list[PooledUpstream] = []
        while len(wave) < self._width and (member := self._run.next()) is not None:
            if wave and not member.in_rotation:
                self._run.tried.remove(member)
                break
            wave.append(member)
        return wave

    async def _first_success(self, wave: list[PooledUpstream]) -> Raw | None:
        pending = {asyncio.create_task(self._send(member), name="broadcast") for member in wave}
        for task in pending:
            # They go on when the caller has its answer, or has left; the pool ends them when it is closed.
            self._background.add(task)
            task.add_done_callback(self._ended)
        while pending:
            longest = self._run.remaining() + _MARGIN_SECONDS
            timeout = min(longest, _GRACE_SECONDS) if self._rejections else longest
            done, pending = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            for task in done:
                error = None if task.cancelled() else task.exception()
                if error is None and not task.cancelled():
                    return task.result()
                if isinstance(error, NodeError) and not isinstance(error, NodeUnable):
                    self._rejections.append(error)
                elif error is not None and not isinstance(error, ChainError):
                    raise error
        return None

    def _ended(self, task: asyncio.Task[Raw]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            # Marks it as seen; what matters of it was looked at by the caller, or came too late.
            task.exception()

    async def _send(self, member: PooledUpstream) -> Raw:
        try:
            return await self._run.attempt(member)
        except NodeUnable:
            raise
        except NodeError as error:
            if (known := await self._arrived_before(member, error)) is None:
                raise
            return known

    async def _arrived_before(self, member: PooledUpstream, error: NodeError) -> Raw | None:
        """The hash, if what the node says in `error` is that it has this very transaction."""
        method = self._run.needs.method
        evm = method == "eth_sendRawTransaction"
        known = is_already_known(error) if evm else is_already_processed(error)
        if not known and not (evm and is_nonce_used(error)):
            return None
        try:
            transaction = Raw(msgspec.json.encode(SUBMISSIONS[method](self._run.params)))
            if known:
                return transaction
            # The nonce is taken: by this very transaction, or by another one. The node can tell.
            question = b"[" + bytes(transaction) + b"]"
            found = await member.call("eth_getTransactionByHash", question, timeout=self._run.remaining())
        except (ChainError, ValueError):
            return None
        return None if bytes(found) == b"null" else transaction


def _vagueness(error: NodeError) -> int:
    """How little a rejection says about the transaction. A used nonce may be the echo of another node's success."""
    return 1 if is_nonce_used(error) else 0
