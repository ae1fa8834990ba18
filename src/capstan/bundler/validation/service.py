"""Validates operations in full: runs them, judges the trace by ERC-7562, and tells what was found out.

`TracingValidator` keeps the promise of `validating.Validator` for one entry point of one network, whichever backend
traces. The pool calls it before it accepts an operation and again before it bundles it.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Protocol

from capstan.bundler.models import Entity, Role
from capstan.bundler.refusals import RULE_VIOLATION, STAKE_TOO_LOW, Refusal
from capstan.bundler.reputation import ReputationRules
from capstan.bundler.validating import Validated
from capstan.bundler.validation.authorizations import check_authorization
from capstan.bundler.validation.outcomes import check_aggregator, check_failure, check_times
from capstan.bundler.validation.phases import Phases, take_apart
from capstan.bundler.validation.rules import Subject, Violation, judge_delegations, judge_opcodes
from capstan.bundler.validation.runs import Run, make_run
from capstan.bundler.validation.stakes import Stake, StakeReader
from capstan.bundler.validation.storage_rules import StorageUse
from capstan.bundler.validation.trace import DEEPEST_CALL, TooDeep, Trace
from capstan.chain.calls.models import BlockChanged, BlockRef
from capstan.core.clock import Clock
from capstan.core.hexes import to_checksum_address, to_quantity
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version

# A block that is gone by the time its state is asked for is replaced by the next one so often.
_ATTEMPTS = 3
# LIM-020.
CONTEXT_BYTES = 2048


class Tracer(Protocol):
    """A backend: runs operations and tells what they did."""

    async def trace(self, run: Run) -> Trace:
        """The trace of a run. Raises `Refusal`, `TooDeep`, `BlockChanged` and what the upstreams raise."""
        ...

    async def code_hashes(self, block: BlockRef, addresses: frozenset[bytes]) -> Mapping[bytes, bytes]:
        """The code hashes of these addresses at a block."""
        ...


class TracingValidator:
    """Validates operations of one entry point on one network."""

    def __init__(
        self,
        *,
        version: Version,
        entry_point: bytes,
        chain_id: int,
        latest: Callable[[], Awaitable[BlockRef]],
        stakes: StakeReader,
        tracer: Tracer,
        clock: Clock,
        rules: ReputationRules | None = None,
        context_bytes: int = CONTEXT_BYTES,
    ) -> None:
        self._version: Version = version
        self._entry_point = entry_point
        self._chain_id = chain_id
        self._latest = latest
        self._stakes = stakes
        self._tracer = tracer
        self._clock = clock
        self._rules = rules or ReputationRules()
        self._context_bytes = context_bytes

    async def validate(
        self, operation: UserOperation, *, earlier: Validated | None = None, queued: bool = False
    ) -> Validated:
        """See `validating.Validator`."""
        check_authorization(operation, self._chain_id)
        for attempt in range(_ATTEMPTS):
            block = await self._latest()
            try:
                run = make_run(block, self._version, self._entry_point, operation, queued=queued)
                return await self._validate_run(run, earlier)
            except BlockChanged:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    async def _validate_run(self, run: Run, earlier: Validated | None) -> Validated:
        block, operation = run.block, run.operation
        try:
            stakes, trace = await self._stakes.beside(block, _entities(operation), self._tracer.trace(run))
        except TooDeep:
            raise Refusal(RULE_VIOLATION, f"the validation nests calls more than {DEEPEST_CALL} deep") from None
        phases = take_apart(run, trace)
        check_aggregator(phases)
        if trace.root.failed:
            check_failure(operation, phases, trace.root.output)
        valid_after, valid_until = check_times(phases, block, self._clock.now())
        subject = self._subject(operation, stakes)
        storage = StorageUse(subject, phases, trace.hashed)
        for violation in _violations(subject, phases, trace, storage, self._context_bytes):
            raise self._refusal(subject, violation, stakes)
        if earlier is not None:
            await self._check_code(block, earlier, trace)
        return Validated(
            block=block,
            sender=self._entity("account", operation.sender, stakes),
            factory=None if subject.factory is None else self._entity("factory", subject.factory, stakes),
            paymaster=None if subject.paymaster is None else self._entity("paymaster", subject.paymaster, stakes),
            gas=phases.gas(),
            context_bytes=len(phases.context),
            pre_operation_gas=phases.pre_operation_gas,
            valid_after=valid_after,
            valid_until=valid_until,
            associated=storage.associated(),
            code_hashes=trace.code_hashes,
            storage=storage.touched(),
            written=storage.written(),
        )

    async def _check_code(self, block: BlockRef, earlier: Validated, trace: Trace) -> None:
        """COD-010: whatever the first validation ran or looked at has the same code still."""
        unseen = frozenset(earlier.code_hashes) - frozenset(trace.code_hashes)
        now = dict(trace.code_hashes)
        if unseen:
            now.update(await self._tracer.code_hashes(block, unseen))
        for address, code_hash in earlier.code_hashes.items():
            if now.get(address) != code_hash:
                raise Refusal(
                    RULE_VIOLATION,
                    f"modified code after first validation: {to_checksum_address(address)} (COD-010)",
                )

    def _subject(self, operation: UserOperation, stakes: Mapping[bytes, Stake]) -> Subject:
        factory = None if operation.is_delegation else operation.factory
        roles: tuple[tuple[Role, bytes | None], ...] = (
            ("account", operation.sender),
            ("factory", factory),
            ("paymaster", operation.paymaster),
        )
        return Subject(
            entry_point=self._entry_point,
            sender=operation.sender,
            factory=factory,
            paymaster=operation.paymaster,
            staked=frozenset(
                role for role, address in roles if address is not None and self._is_staked(stakes.get(address))
            ),
            second_post_op=self._version == "0.6",
        )

    def _is_staked(self, stake: Stake | None) -> bool:
        """SREP-010."""
        if stake is None:
            return False
        return stake.amount >= self._rules.min_stake and stake.delay >= self._rules.min_unstake_delay

    def _entity(self, role: Role, address: bytes, stakes: Mapping[bytes, Stake]) -> Entity:
        return Entity(role, address, self._is_staked(stakes.get(address)))

    def _refusal(self, subject: Subject, violation: Violation, stakes: Mapping[bytes, Stake]) -> Refusal:
        address = subject.address(violation.role)
        message = f"{violation.message} ({violation.rule})"
        if address is None:
            return Refusal(RULE_VIOLATION, message)
        data: dict[str, str] = {violation.role: to_checksum_address(address)}
        stake = stakes.get(address)
        if violation.stake_helps and stake is not None and stake.amount > 0:
            # There is a stake, and it is too small or not locked for long enough.
            data["minimumStake"] = to_quantity(self._rules.min_stake)
            data["minimumUnstakeDelay"] = to_quantity(self._rules.min_unstake_delay)
            return Refusal(STAKE_TOO_LOW, f"{message}; its stake is too low", data)
        return Refusal(RULE_VIOLATION, message, data)


def _entities(operation: UserOperation) -> tuple[bytes, ...]:
    factory = None if operation.is_delegation else operation.factory
    return tuple(each for each in (operation.sender, factory, operation.paymaster) if each is not None)


def _violations(
    subject: Subject, phases: Phases, trace: Trace, storage: StorageUse, context_bytes: int
) -> Iterator[Violation]:
    yield from judge_delegations(subject, trace)
    for role, top in phases.by_role():
        yield from judge_opcodes(subject, trace, role, top)
    yield from storage.violations()
    if subject.second_post_op and phases.context and "paymaster" not in subject.staked:
        yield Violation(
            rule="EREP-050", role="paymaster", message="unstaked paymaster returned a context", stake_helps=True
        )
    if len(phases.context) > context_bytes:
        yield Violation(
            rule="LIM-020",
            role="paymaster",
            message=f"paymaster returned a context of {len(phases.context)} bytes, and at most {context_bytes} may be",
        )
