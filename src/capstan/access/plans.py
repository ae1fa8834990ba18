"""The limits that hold for one account: its plan's numbers, replaced by what the operator set for it.

Called by admission on every request and by the services that count things. Plans come from the settings and may change
while the service runs, so they are asked for each time.
"""

from collections.abc import Callable
from typing import Protocol

from capstan.access.models import NO_OVERRIDES, Account, Caller, Overrides
from capstan.limits.models import Limits


class PlanNumbers(Protocol):
    """What a plan allows; 0 means no limit."""

    @property
    def requests_per_second(self) -> int: ...
    @property
    def requests_per_day(self) -> int: ...
    @property
    def units_per_second(self) -> int: ...
    @property
    def deliveries_per_day(self) -> int: ...
    @property
    def webhooks(self) -> int: ...
    @property
    def wallets(self) -> int: ...
    @property
    def policies(self) -> int: ...
    @property
    def keys(self) -> int: ...


class PlanBook:
    """Looks up limits."""

    def __init__(self, plan: Callable[[str], PlanNumbers]) -> None:
        self._plan = plan
        self._of_plans: dict[str, Limits] = {}

    def forget(self) -> None:
        """Call after the plans were replaced."""
        self._of_plans.clear()

    def effective(self, plan: str, overrides: Overrides) -> Overrides:
        """Every limit of an account as a number."""
        numbers = self._plan(plan)
        return Overrides(
            **{
                name: own if (own := getattr(overrides, name)) is not None else getattr(numbers, name)
                for name in Overrides.__struct_fields__
            }
        )

    def limits_of(self, caller: Caller) -> Limits:
        """The three request limits of a caller."""
        own = caller.overrides
        if own is NO_OVERRIDES:
            known = self._of_plans.get(caller.plan)
            if known is None:
                known = self._of_plans[caller.plan] = self._combined(caller.plan, own)
            return known
        return self._combined(caller.plan, own)

    def _combined(self, plan: str, own: Overrides) -> Limits:
        numbers = self._plan(plan)
        return Limits(
            numbers.requests_per_second if own.requests_per_second is None else own.requests_per_second,
            numbers.requests_per_day if own.requests_per_day is None else own.requests_per_day,
            numbers.units_per_second if own.units_per_second is None else own.units_per_second,
        )

    def key_limit(self, account: Account) -> int:
        """How many keys an account may have."""
        own = account.overrides.keys
        return self._plan(account.plan).keys if own is None else own
