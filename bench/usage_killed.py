"""100,000 mixed calls, the service killed twice meanwhile: is the usage ledger the client's log? No measure of speed.

Run `python bench/usage_killed.py [calls]`. Ends with an error when the ledger holds less than was answered before the
last second of a process, or more than was asked.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# Found by the line above when run as a script.
from tests.support.usage_kills import kill_twice

_CALLS = 100_000


def main(calls: int) -> None:
    """Run it once and say how it went."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        made = asyncio.run(kill_twice(Path(directory), calls))
    print(f"{made} calls and two kills in {time.monotonic() - began:.0f} s: the ledger is the client's log")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else _CALLS)
