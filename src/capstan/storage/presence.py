"""Notices a second service on the same embedded database.

The composition root enters `alone` when limits are counted in memory: two such processes would each grant the whole
limit, and the operator must be told. It is a notice, not a lock: both may run.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(database_file: Path) -> Iterator[bool]:
    """True while no other process is in here for this file. The mark ends with the process, however that ends."""
    with database_file.with_name(database_file.name + "-serving").open("a") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
