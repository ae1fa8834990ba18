"""Sponsors operations: reads one, judges it by its policy, reserves what it can cost, and signs.

Called by the routes of `POST /gas/sponsor` and of ERC-7677. The order matters: everything that can refuse comes first,
the reservation is committed before the signature leaves, and nothing is undone by hand: what is reserved and never
used is released when its time is over.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from capstan.access.models import Caller
from capstan.catalogue.networks import Network as NetworkFacts
from capstan.chain.calls.models import BlockChanged, BlockRef
from capstan.chain.registry import Network
from capstan.core.clock import Clock, iso, utc
from capstan.core.decimals import format_units
from capstan.core.errors import Forbidden, InvalidRequest, Unavailable
from capstan.core.hexes import to_checksum_address, to_data, to_quantity
from capstan.core.ids import new_id
from capstan.gas.policies.models import Policy
from capstan.gas.policies.rules import NANO, compiled
from capstan.gas.policies.service import PolicyService
from capstan.gas.sponsor.amounts import nano_usd
from capstan.gas.sponsor.chain import SponsorChain
from capstan.gas.sponsor.hook import DecisionHooks
from capstan.gas.sponsor.judging import Refused, judge, judge_budget, judge_cost
from capstan.gas.sponsor.ledger import Ledger
from capstan.gas.sponsor.metrics import SponsorMetrics
from capstan.gas.sponsor.models import Draft, Sponsored
from capstan.gas.sponsor.paymasters import Window, data, digest
from capstan.gas.sponsor.reading import Subject, read_subject
from capstan.gas.sponsor.signer import PaymasterSigner
from capstan.userops.codec import codec_for
from capstan.userops.models import InvalidOperation, UserOperation
from capstan.userops.versions import Version

# A million US dollars. No operation costs as much; a number this large is a mistake in the fees.
_MOST_COST = 10 ** (6 + NANO)


class Limits(msgspec.Struct, frozen=True):
    """Gas limits that suffice."""

    call: int
    verification: int
    pre_verification: int


class Estimator(Protocol):
    """Finds gas limits."""

    async def estimate(self, network: Network, version: Version, operation: UserOperation) -> Limits:
        """The limits of an operation. Raises `InvalidRequest` when it would fail with any."""
        ...


class NativePrice(Protocol):
    """A price of the native coin."""

    @property
    def usd(self) -> Decimal: ...


class Prices(Protocol):
    """Knows what the native coin is worth."""

    async def native(self, network: Network, block: BlockRef) -> NativePrice | None: ...


class Options(msgspec.Struct, frozen=True):
    """How sponsorships are given."""

    validity_seconds: int


class Parts(msgspec.Struct, frozen=True):
    """What the service is put together from; the composition root provides it."""

    policies: PolicyService
    ledger: Ledger
    chain: SponsorChain
    prices: Prices
    estimator: Estimator
    hooks: DecisionHooks
    metrics: SponsorMetrics
    # The network of a policy with what is known of it, for a caller who may use it.
    resolve: Callable[[Caller, str, str], tuple[Network, NetworkFacts]]


class Case(msgspec.Struct, frozen=True):
    """A request that the rules allow so far."""

    policy: Policy
    network: Network
    facts: NetworkFacts
    subject: Subject


class Trial(msgspec.Struct, frozen=True):
    """What would become of a request."""

    # The rule that does not allow it, and why; None when all do.
    rule: str | None
    reason: str
    # The most it can cost, in billionths of a US dollar; None where a rule refused before that was known.
    cost: int | None
    # Whether a hook would be asked, which may refuse.
    asks_hook: bool


class SponsorService:
    """Sponsors operations on every network."""

    def __init__(self, parts: Parts, signer: PaymasterSigner | None, clock: Clock, options: Options) -> None:
        self._parts = parts
        self._signer = signer
        self._clock = clock
        self._options = options

    async def open_case(
        self,
        caller: Caller,
        policy_id: str,
        operation: Mapping[str, Any],
        *,
        chain: str,
        network: str | None = None,
        entry_point: str | None = None,
    ) -> Case:
        """Read the request, and judge what follows from it alone. Raises the errors of the API."""
        case = await self._read_case(caller, policy_id, operation, chain, network, entry_point)
        try:
            self._judge(case)
        except Refused as refusal:
            raise self._forbidden(case.policy, refusal) from None
        return case

    async def _read_case(
        self,
        caller: Caller,
        policy_id: str,
        operation: Mapping[str, Any],
        chain: str | None,
        network: str | None,
        entry_point: str | None,
    ) -> Case:
        policy = await self._parts.policies.find(caller, policy_id)
        name = policy.network.partition("/")[2]
        if (chain is not None and chain != policy.chain) or (network is not None and network != name):
            raise InvalidRequest(f"chain: the policy {policy.id} is for {policy.network}")
        connected, facts = self._parts.resolve(caller, policy.chain, name)
        return Case(policy, connected, facts, read_subject(facts, operation, entry_point))

    def _judge(self, case: Case) -> None:
        judge(case.policy, compiled(case.policy.rules), case.subject.operation, self._clock.now())

    async def sponsor(self, case: Case) -> Sponsored:
        """Reserve and sign. Raises `Forbidden` naming the rule that does not allow it."""
        signer = self.require_signer()
        case = await self._completed(case)
        head = await self._parts.chain.head(case.network)
        price = await self._price(case, head)
        cost = self._cost(case, price)
        try:
            judge_cost(compiled(case.policy.rules), cost)
            self._judge_budget(case.policy, cost)
            await self._parts.hooks.ask(case.policy, lambda: _question(case, cost))
            signed, window = await self._signed(case, head, signer)
            draft = self._draft(case, signed, price, cost, window)
            await self._parts.ledger.reserve(draft)
        except Refused as refusal:
            raise self._forbidden(case.policy, refusal) from None
        self._parts.metrics.sponsored(case.policy.network)
        return _sponsored(case, signed, draft)

    async def try_out(
        self, caller: Caller, policy_id: str, operation: Mapping[str, Any], entry_point: str | None = None
    ) -> Trial:
        """Whether `sponsor` would grant this now, and if not, the rule. Nothing is reserved, and no hook is asked."""
        self.require_signer()
        case = await self._read_case(caller, policy_id, operation, None, None, entry_point)
        cost: int | None = None
        try:
            self._judge(case)
            case = await self._completed(case)
            head = await self._parts.chain.head(case.network)
            price = await self._price(case, head)
            cost = self._cost(case, price)
            window = Window(self._until(case.policy, head))
            await self._parts.ledger.judge(self._draft(case, case.subject.operation, price, cost, window))
        except Refused as refusal:
            return Trial(refusal.rule, refusal.reason, cost, asks_hook=False)
        return Trial(None, "", cost, asks_hook=case.policy.hook is not None)

    def require_signer(self) -> PaymasterSigner:
        """The signer. Raises `Unavailable` on a server without one."""
        if self._signer is None:
            raise Unavailable("gas sponsorship is not set up on this server: the operator must set gas.signer")
        return self._signer

    async def _completed(self, case: Case) -> Case:
        """The same with gas limits, and a sender that will be there."""
        operation = case.subject.operation
        if case.subject.incomplete:
            limits = await self._parts.estimator.estimate(case.network, case.subject.version, operation)
            filled = msgspec.structs.replace(
                operation,
                call_gas_limit=operation.call_gas_limit or limits.call,
                verification_gas_limit=operation.verification_gas_limit or limits.verification,
                pre_verification_gas=operation.pre_verification_gas or limits.pre_verification,
            )
            return msgspec.structs.replace(case, subject=msgspec.structs.replace(case.subject, operation=filled))
        if operation.factory is None and not await self._parts.chain.is_deployed(case.network, operation.sender):
            fields = "initCode" if case.subject.version == "0.6" else "factory and factoryData"
            raise InvalidRequest(
                f"user_operation: {to_checksum_address(operation.sender)} is not deployed on {case.policy.network},"
                f" so {fields} must say how to deploy it"
            )
        return case

    async def _price(self, case: Case, head: BlockRef) -> Decimal:
        try:
            found = await self._parts.prices.native(case.network, head)
        except BlockChanged:
            found = await self._parts.prices.native(case.network, await self._parts.chain.head(case.network))
        if found is None:
            raise Unavailable(
                f"nobody knows the price of {case.facts.native_symbol} on {case.policy.network} now, so nothing can be"
                " sponsored; the operator can set prices.fixed",
                retry_after=30,
            )
        return found.usd

    def _cost(self, case: Case, price: Decimal) -> int:
        wei = codec_for(case.subject.version).required_prefund(case.subject.operation)
        cost = nano_usd(wei, price, case.facts.native_decimals)
        if cost > _MOST_COST:
            raise InvalidRequest("user_operation: it may cost more than a million US dollars; check fees and limits")
        return cost

    def _judge_budget(self, policy: Policy, cost: int) -> None:
        """A first look, so that no hook is asked in vain; the ledger decides."""
        judge_budget(compiled(policy.rules), cost, total=policy.all_time.total, today=policy.today.total)

    async def _signed(self, case: Case, head: BlockRef, signer: PaymasterSigner) -> tuple[UserOperation, Window]:
        subject = case.subject
        count = None
        if subject.version == "0.6":
            count = await self._parts.chain.sender_nonce(case.network, subject.paymaster, subject.operation.sender)
        window = Window(self._until(case.policy, head))
        signature = signer.sign(digest(subject.version, subject.operation, case.facts.chain_id, window, count))
        return msgspec.structs.replace(subject.operation, paymaster_data=data(window, signature)), window

    def _until(self, policy: Policy, head: BlockRef) -> int:
        """By the later of our clock and the chain's, because the chain judges; never beyond the policy."""
        until = max(int(self._clock.now()), head.timestamp) + self._options.validity_seconds
        last = compiled(policy.rules).valid_until
        return until if last is None else min(until, int(last))

    def _draft(self, case: Case, signed: UserOperation, price: Decimal, cost: int, window: Window) -> Draft:
        return Draft(
            id=new_id("spo"),
            policy_id=case.policy.id,
            network=case.policy.network,
            entry_point=case.subject.entry_point,
            paymaster=case.subject.paymaster,
            sender=signed.sender,
            nonce=signed.nonce,
            hash=_hash(case, signed),
            price=price,
            cost=cost,
            valid_until=window.until,
            created_at=utc(self._clock),
        )

    def _forbidden(self, policy: Policy, refusal: Refused) -> Forbidden:
        self._parts.metrics.refused(policy.network, refusal.rule)
        return Forbidden(f"the policy {policy.id} does not sponsor this operation; {refusal}")


def _hash(case: Case, signed: UserOperation) -> bytes | None:
    try:
        return codec_for(case.subject.version).hash(signed, case.subject.entry_point, case.facts.chain_id)
    except InvalidOperation:
        # The sender delegates to a contract that the operation does not name (EIP-7702), and the hash covers it.
        return None


def _question(case: Case, cost: int) -> dict[str, Any]:
    """What a decision hook is told."""
    return {
        "chain": case.policy.chain,
        "network": case.policy.network.partition("/")[2],
        "entry_point": to_checksum_address(case.subject.entry_point),
        "sponsored_gas_usd": format_units(cost, NANO),
        "user_operation": codec_for(case.subject.version).render(case.subject.operation),
    }


# There are few paymasters, and the letter case of an address takes a hash.
_shown = lru_cache(maxsize=256)(to_checksum_address)


def _sponsored(case: Case, signed: UserOperation, draft: Draft) -> Sponsored:
    subject = case.subject
    shown = Sponsored(
        paymaster=_shown(subject.paymaster),
        paymaster_data=to_data(signed.paymaster_data),
        paymaster_verification_gas_limit=to_quantity(signed.paymaster_verification_gas_limit),
        paymaster_post_op_gas_limit=to_quantity(signed.paymaster_post_op_gas_limit),
        sponsored_gas_usd=format_units(draft.cost, NANO),
        sponsorship_id=draft.id,
        valid_until=iso(datetime.fromtimestamp(draft.valid_until, UTC)),
    )
    if subject.version == "0.6":
        together = to_data(subject.paymaster + signed.paymaster_data)
        shown = msgspec.structs.replace(shown, paymaster_and_data=together)
    if subject.incomplete:
        shown = msgspec.structs.replace(
            shown,
            call_gas_limit=to_quantity(signed.call_gas_limit),
            verification_gas_limit=to_quantity(signed.verification_gas_limit),
            pre_verification_gas=to_quantity(signed.pre_verification_gas),
        )
    return shown
