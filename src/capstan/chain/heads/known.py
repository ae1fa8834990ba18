"""What the EVM head source keeps of one upstream: its last report, and what not to ask it again too soon.

Used by `evm` alone. No input or output.
"""

from capstan.chain.heads.choice import Report

_FREE_LINK_FAILURES = 2
_LONGEST_LINK_REST = 30.0


class KnownUpstream:
    """What is kept of one upstream."""

    def __init__(self) -> None:
        self.report: Report | None = None
        self.heard = False
        # Answers may overtake each other; an older one is not taken after a newer one. By the time of asking, then by
        # count: a colleague's question has only a time.
        self.asked = 0
        self.taken = (float("-inf"), 0)
        self.link_failures = 0
        self.link_again_at = 0.0
        self.tags_again_at = 0.0

    def ticket(self, asked_at: float) -> tuple[float, int]:
        """The place of a question among all others."""
        self.asked += 1
        return asked_at, self.asked

    def link_failed(self, now: float) -> None:
        """Ask less often for the parents of a head that cannot be linked."""
        self.link_failures += 1
        rest = 2.0 ** min(self.link_failures - _FREE_LINK_FAILURES, 10) if self._tired else 0.0
        self.link_again_at = now + min(rest, _LONGEST_LINK_REST)

    @property
    def _tired(self) -> bool:
        return self.link_failures > _FREE_LINK_FAILURES
