"""Puts the validation of one network together from its parts.

Called by the composition root, once for each network that has a bundler; it makes a validator for each entry point.
State that is fetched, and what is learned about operations, is shared by all entry points of the network. The worker
processes are shared by all networks and belong to the caller, who closes them.
"""

from capstan.bundler.reputation import ReputationRules
from capstan.bundler.validation.choosing import Backend, ChoosingTracer
from capstan.bundler.validation.local import LocalTracer
from capstan.bundler.validation.native import NativeTracer
from capstan.bundler.validation.service import CONTEXT_BYTES, TracingValidator
from capstan.bundler.validation.stakes import StakeReader
from capstan.bundler.validation.state import ChainState
from capstan.bundler.validation.workers import Workers
from capstan.chain.calls.blocks import HeadBlocks
from capstan.chain.calls.models import BlockRef
from capstan.chain.calls.reader import StateReader
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.userops.versions import Version


class NetworkValidation:
    """The validation of one network."""

    def __init__(
        self,
        network: Network,
        chain_id: int,
        *,
        blocks: HeadBlocks,
        reader: StateReader,
        workers: Workers,
        clock: Clock,
        rules: ReputationRules | None = None,
        context_bytes: int = CONTEXT_BYTES,
        backend: Backend = "auto",
    ) -> None:
        self._network = network
        self._chain_id = chain_id
        self._blocks = blocks
        self._reader = reader
        self._workers = workers
        self._clock = clock
        self._rules = rules
        self._context_bytes = context_bytes
        # What of the chain is known, for those who count questions.
        self.state = ChainState(network)
        local = LocalTracer(network, chain_id, self.state, workers)
        self.tracer = ChoosingTracer(network, NativeTracer(self.state), local, clock, backend)

    def validator(self, version: Version, entry_point: bytes) -> TracingValidator:
        """The validator of one entry point. It keeps no connection and needs no closing."""
        return TracingValidator(
            version=version,
            entry_point=entry_point,
            chain_id=self._chain_id,
            latest=self._latest,
            stakes=StakeReader(self._network, self._reader, entry_point),
            tracer=self.tracer,
            clock=self._clock,
            rules=self._rules,
            context_bytes=self._context_bytes,
        )

    async def warm(self) -> None:
        """Do ahead what the first operation would have to wait for. What fails now is tried again then."""
        if await self.tracer.chosen() == "local":
            await self._workers.warm()

    async def _latest(self) -> BlockRef:
        return await self._blocks.latest(self._network)
