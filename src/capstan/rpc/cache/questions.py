"""The questions that were asked lately, so that a repeated call is not read again.

Used by `gateway` on every call. Questions follow from what was asked alone, so nothing ever ends them but their age.
"""

from typing import TypeAlias

from capstan.core.memo import Memo
from capstan.rpc.cache.models import Question

# The network, the method and the params exactly as they came.
Asked: TypeAlias = bytes

_MAX_ASKED_BYTES = 4096
# The question and its place in the dict: 260 measured with tracemalloc, and a new dict grows in steps.
_OVERHEAD = 400


class QuestionMemo:
    """Questions by what was asked. Holds at most twice `max_bytes`."""

    def __init__(self, max_bytes: int = 4 * 1024 * 1024) -> None:
        self._memo: Memo[Asked, Question] = Memo(max_bytes, _size)
        # The question, if it was asked lately. Bound once: it is asked on every call.
        self.get = self._memo.get

    def __len__(self) -> int:
        return len(self._memo)

    def put(self, asked: Asked, question: Question) -> None:
        """Remember a question. Those with very long params are not remembered."""
        if len(asked) <= _MAX_ASKED_BYTES:
            self._memo.put(asked, question)


def _size(asked: Asked, question: Question) -> int:
    return len(asked) + len(question.key) + _OVERHEAD
