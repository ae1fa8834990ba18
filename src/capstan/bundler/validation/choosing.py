"""Chooses the backend of a network: the nodes' own tracer where they have it, else the EVM of ours.

Found out by asking, once, and again after a while when the nodes had none. When a node fails to trace, the operation is
traced by the other backend, so an upstream without the tracer never costs an operation.
"""

import asyncio
from collections.abc import Mapping
from typing import Literal

import msgspec
import structlog

from capstan.bundler.validation.local import LocalTracer
from capstan.bundler.validation.native import TRACER, NativeTracer, NodeFrame
from capstan.bundler.validation.runs import Run
from capstan.bundler.validation.trace import Trace
from capstan.chain.calls.models import BlockRef
from capstan.chain.errors import ChainError
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.errors import ApiError

log = structlog.get_logger(__name__)

Backend = Literal["auto", "native", "local"]

# The identity precompile: a call that every chain can trace.
_PROBE = {"to": "0x0000000000000000000000000000000000000004", "data": "0x01"}
_ASK_AGAIN_SECONDS = 600.0


class ChoosingTracer:
    """A tracer that is one of two."""

    def __init__(
        self, network: Network, native: NativeTracer, local: LocalTracer, clock: Clock, backend: Backend = "auto"
    ) -> None:
        self._network = network
        self._native = native
        self._local = local
        self._clock = clock
        self._backend: Backend = backend
        self._has_native: bool | None = None
        self._ask_again = 0.0
        self._asking = asyncio.Lock()

    async def chosen(self) -> Literal["native", "local"]:
        """Which one traces now."""
        if self._backend != "auto":
            return self._backend
        async with self._asking:
            if self._has_native is None or (not self._has_native and self._clock.monotonic() >= self._ask_again):
                self._has_native = await self._probe()
                self._ask_again = self._clock.monotonic() + _ASK_AGAIN_SECONDS
                log.info("validation.backend", network=self._network.name, native=self._has_native)
        return "native" if self._has_native else "local"

    async def trace(self, run: Run) -> Trace:
        """See `service.Tracer`."""
        if await self.chosen() == "native":
            try:
                return await self._native.trace(run)
            except (ChainError, ApiError) as error:
                if self._backend == "native":
                    raise
                log.warning("validation.native_failed", network=self._network.name, reason=str(error)[:200])
        return await self._local.trace(run)

    async def code_hashes(self, block: BlockRef, addresses: frozenset[bytes]) -> Mapping[bytes, bytes]:
        """See `service.Tracer`. Both know them from the same questions."""
        return await self._local.code_hashes(block, addresses)

    async def _probe(self) -> bool:
        """Whether the nodes have the tracer. One that ignores its name would answer with something else."""
        try:
            answer = await self._network.pool.request("debug_traceCall", [_PROBE, "latest", {"tracer": TRACER}])
            msgspec.convert(answer, NodeFrame)
        except (ChainError, ApiError, msgspec.ValidationError):
            return False
        return True
