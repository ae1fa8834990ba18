"""A process of its own that records a known sequence until it is killed, and writes down what it records and when.

    python -m tests.unit.usage.worker URL LOG

Every line of the log is the moment (monotonic, in seconds) and the number of a request. It is written before the
request is recorded, so that the log is never behind the ledger. What request n looks like is told by `request`.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from capstan.core.clock import SystemClock
from capstan.storage.database import Database, DatabaseOptions
from tests.unit.usage.parts import METHODS, new_recorder

# Between two requests. Much less than the interval between flushes, so that the log also shows when the process stood.
PAUSE_SECONDS = 0.002


def request(number: int) -> dict[str, Any]:
    """Request number `number`. Units differ, so that the sums over the first n requests differ for each n."""
    return {
        "account_id": "acc_1",
        "key_id": f"key_{number % 3}",
        "network": "ethereum/mainnet" if number % 2 else "solana/devnet",
        "method": METHODS[number % len(METHODS)],
        "units": 1 + number % 17,
        "failed": number % 5 == 0,
        "microseconds": 100 * (number % 1_000),
        "cached": number % 7 == 0,
    }


async def run(url: str, log: Path) -> None:
    """Record until the end of the process."""
    recorder = new_recorder(Database(DatabaseOptions(url=url)), SystemClock())
    await recorder.start()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    number = 0
    while True:
        os.write(descriptor, f"{time.monotonic():.6f} {number}\n".encode())
        recorder.record(**request(number))
        number += 1
        await asyncio.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2])))
