"""What can go wrong in storage, in words the rest of the service may catch.

    StorageError
     ├─ StorageUnavailable   the database cannot be reached, is locked, or timed out; trying later may work
     ├─ AlreadyExists        a uniqueness rule of the schema was broken
     └─ SchemaMismatch       the database is newer or older than this code

The engine's own exceptions are translated here, by `Database`, and nowhere else.
"""


class StorageError(Exception):
    """Base of storage failures."""


class StorageUnavailable(StorageError):
    """The database did not answer; nothing was written by this transaction."""


class AlreadyExists(StorageError):
    """A row with the same unique value exists."""


class SchemaMismatch(StorageError):
    """The schema version of the database does not fit this code."""
