"""How far an account has come: whether it has a key, a request, a webhook and a wallet.

Asked by the overview and the first-run page. The answer comes from counts that the capabilities give; once everything
is there it is remembered, since nobody begins twice.
"""

from collections.abc import Awaitable, Callable

import msgspec

# Whether an account has something.
Check = Callable[[str], Awaitable[bool]]


class Steps(msgspec.Struct, frozen=True):
    """What there is."""

    key: bool
    request: bool
    webhook: bool
    wallet: bool

    @property
    def all(self) -> bool:
        """Whether there is nothing left to do."""
        return self.key and self.request and self.webhook and self.wallet


class Progress:
    """Asks the capabilities."""

    def __init__(self, *, key: Check, request: Check, webhook: Check, wallet: Check) -> None:
        self._checks = {"key": key, "request": request, "webhook": webhook, "wallet": wallet}
        self._arrived: set[str] = set()

    async def of(self, account_id: str) -> Steps:
        """How far this account is."""
        if account_id in self._arrived:
            return Steps(key=True, request=True, webhook=True, wallet=True)
        found = Steps(**{name: await check(account_id) for name, check in self._checks.items()})
        if found.all:
            self._arrived.add(account_id)
        return found
