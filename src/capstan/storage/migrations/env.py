"""Alembic's entry: runs the migrations on the connection that `storage.migrate` hands over.

There is no `alembic.ini` and no offline mode. Batch mode is on because SQLite cannot alter most things in place.
"""

from alembic import context

from capstan.storage.schema import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,
    transaction_per_migration=False,
    version_table="schema_version",
)
with context.begin_transaction():
    context.run_migrations()
