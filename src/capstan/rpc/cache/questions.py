"""The questions that were asked lately, so that a repeated call is not read again.

Used by `gateway` on every call, so it is two dicts and no more: when the younger is full it becomes the older, and the
older is forgotten. What is still in use moves back to the younger.
"""

from typing import TypeAlias

from capstan.rpc.cache.models import Question

# The network, the method and the params exactly as they came.
Asked: TypeAlias = tuple[str, str, bytes]

_MAX_PARAMS_BYTES = 4096
# The tuple, the question and their place in the dict: 260 measured with tracemalloc, and a new dict grows in steps.
_OVERHEAD = 400


class QuestionMemo:
    """Questions by what was asked. Holds at most twice `max_bytes`."""

    def __init__(self, max_bytes: int = 4 * 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self._younger: dict[Asked, Question] = {}
        self._older: dict[Asked, Question] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._younger) + len(self._older)

    def get(self, asked: Asked) -> Question | None:
        """The question, if it was asked lately."""
        question = self._younger.get(asked)
        if question is None:
            question = self._older.pop(asked, None)
            if question is not None:
                self.put(asked, question)
        return question

    def put(self, asked: Asked, question: Question) -> None:
        """Remember a question. Those with very long params are not remembered."""
        params = len(asked[2])
        if params > _MAX_PARAMS_BYTES:
            return
        self._bytes += params + len(question.key) + _OVERHEAD
        self._younger[asked] = question
        if self._bytes > self._max_bytes:
            self._older = self._younger
            self._younger = {}
            self._bytes = 0
