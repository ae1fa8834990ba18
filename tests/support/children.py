"""What child processes of the tests have in common."""

import ctypes
import sys
from collections.abc import Callable


def die_with_parent(death_signal: int) -> Callable[[], None] | None:
    """What makes a child end when this process is killed. Only Linux can do that."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    set_parent_death_signal = 1

    def arrange() -> None:
        prctl(set_parent_death_signal, death_signal)

    return arrange
