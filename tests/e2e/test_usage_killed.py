"""What the usage ledger holds when the service is killed: see `tests/support/usage_kills.py`.

The run with 100,000 calls is `bench/usage_killed.py`; here it is one with fewer, and the same comparison.
"""

from pathlib import Path

from tests.support.usage_kills import kill_twice

CALLS = 30_000


async def test_the_ledger_is_the_clients_log_although_the_service_is_killed_twice(tmp_path: Path) -> None:
    await kill_twice(tmp_path, CALLS)
