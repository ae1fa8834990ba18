"""Reads the body of a request and finds out what it costs, before anything is charged or done.

Used by the RPC service, and through it by everybody who has the bytes of a request. A single read with nothing unusual
about it takes the short way: what is known of its method is looked up once, and when its params are ones whose answer
is in memory, or are in their simplest spelling, only the frame around them is read. Everything else is read with the
care it needs. All ways give the same.
"""

from collections.abc import Callable
from typing import ClassVar

import msgspec

from capstan.chain.registry import Network
from capstan.core import jsonrpc
from capstan.core.errors import InvalidRequest, PayloadTooLarge
from capstan.core.jsonrpc import BadCall, Call, Item
from capstan.rpc.blocks import is_archive_read, state_block
from capstan.rpc.cache.gateway import Topic
from capstan.rpc.cache.models import HeadView, Question
from capstan.rpc.models import Cost, Head
from capstan.rpc.treatments import Treatment, Treatments

_MEBIBYTE = 1024 * 1024


class RpcLimits(msgspec.Struct, frozen=True):
    """The sizes the gateway accepts and the work it does at once for one request."""

    max_body_bytes: int = 5 * _MEBIBYTE
    max_batch_items: int = jsonrpc.DEFAULT_MAX_ITEMS
    max_depth: int = jsonrpc.DEFAULT_MAX_DEPTH
    batch_concurrency: int = 16
    # Once the answers of a batch are larger than this together, its remaining items are not asked any more.
    max_batch_reply_bytes: int = 64 * _MEBIBYTE


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """A request that was read: its calls and what they cost together."""

    items: tuple[Item, ...]
    is_batch: bool
    units: int

    @property
    def requests(self) -> int:
        """How many requests it counts as."""
        return len(self.items)


class PreparedRead(msgspec.Struct, frozen=True, gc=False):
    """The same of a single read with an id: how it is treated, and what it asks."""

    id: bytes
    params: bytes
    units: int
    # Whether it reads state that only archive nodes have.
    archive: bool
    treatment: Treatment
    question: Question
    is_batch: ClassVar[bool] = False
    requests: ClassVar[int] = 1

    @property
    def items(self) -> tuple[Item, ...]:
        """The call, as one among the items of any other request."""
        return (Call(self.treatment.method, self.params, self.id),)


class Preparer:
    """Reads and prices requests."""

    def __init__(
        self,
        limits: RpcLimits,
        *,
        cost: Cost,
        head: Head,
        archive_depth: Callable[[], int],
        topic: Callable[[Network, str], Topic],
        ask: Callable[[Topic, bytes], Question],
        ask_known: Callable[[Topic, bytes], Question | None],
        heads: Callable[[Network], HeadView],
    ) -> None:
        """`topic` tells what a method means to the cache, and `ask` makes a call a question about it.

        `ask_known` does so for params that are in their simplest spelling, and gives None for all others.
        """
        self._max_body_bytes = limits.max_body_bytes
        self._cost = cost
        self._head = head
        self._archive_depth = archive_depth
        self._ask = ask
        self._ask_known = ask_known
        self._parser = jsonrpc.RequestParser(max_items=limits.max_batch_items, max_depth=limits.max_depth)
        self._parse_plain = self._parser.parse_plain
        self._treatments = Treatments(cost, topic, heads)
        self._treatment_of = self._treatments.of
        # What is known of the methods of a network, for `prepare`.
        self.methods = self._treatments.named

    def prepare(
        self, network: Network, body: bytes, methods: dict[bytes, Treatment] | None = None
    ) -> Prepared | PreparedRead:
        """Read the body and price it. Raises `PayloadTooLarge`, or `InvalidRequest` when it is no JSON-RPC.

        `methods` is what `methods` gave for the network, from those who keep it.
        """
        if len(body) > self._max_body_bytes:
            raise PayloadTooLarge(f"The body is larger than {self._max_body_bytes} bytes.")
        found = jsonrpc.id_first(body)
        parts = jsonrpc.plain_parts(body) if found is None else found.groups(jsonrpc.NO_PARAMS)
        if parts is not None:
            call_id, method, params = parts
            treatment = (self.methods(network) if methods is None else methods).get(method)
            question = None if treatment is None else self._ask_known(treatment.topic, params)
            if treatment is not None and question is not None:
                # The params are known to be JSON, so the whole is a call.
                if treatment.reads_state and question.block != "latest":
                    return self._prepare_read(network, call_id, params, treatment, question)
                return PreparedRead(call_id, params, treatment.units, False, treatment, question)
        call = self._parse_plain(body)
        treatment = None if call is None else self._treatment_of(network, call.method)
        if call is None or call.id is None or treatment is None:
            return self._prepare_carefully(network, body)
        return self._prepare_read(network, call.id, call.params, treatment, self._ask(treatment.topic, call.params))

    def prepare_call(self, network: Network, call: Call) -> PreparedRead | None:
        """A call of a batch on its own, if it is a read with an id."""
        treatment = self._treatment_of(network, call.method)
        if treatment is None or call.id is None:
            return None
        return self._prepare_read(network, call.id, call.params, treatment, self._ask(treatment.topic, call.params))

    def _prepare_read(
        self, network: Network, call_id: bytes, params: bytes, treatment: Treatment, question: Question
    ) -> PreparedRead:
        # Nearly all reads of state name the latest block, as the question tells; of others, the params must be read.
        archive = (
            treatment.reads_state
            and question.block != "latest"
            and self.is_archive(Call(treatment.method, params, call_id), network)
        )
        units = treatment.archive_units if archive else treatment.units
        return PreparedRead(call_id, params, units, archive, treatment, question)

    def _prepare_carefully(self, network: Network, body: bytes) -> Prepared | PreparedRead:
        try:
            request = self._parser.parse(body)
        except jsonrpc.Malformed as error:
            raise InvalidRequest(error.message) from None
        items = request.items
        if not request.is_batch and isinstance(items[0], Call):
            read = self.prepare_call(network, items[0])
            if read is not None:
                return read
        return Prepared(items, request.is_batch, sum(self.units(item, network) for item in items))

    def is_archive(self, call: Call, network: Network) -> bool:
        """Whether a call reads state that only archive nodes have."""
        # The head is asked for only where it matters.
        return state_block(call.method, call.params) is not None and is_archive_read(
            call.method, call.params, self._head(network), self._archive_depth()
        )

    def units(self, item: Item, network: Network) -> int:
        """What an item costs: by its method, refused or not; nothing if it is no call at all."""
        if isinstance(item, BadCall):
            return 0
        return self._cost(item.method, self.is_archive(item, network))
