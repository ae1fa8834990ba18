"""Alembic migrations. `storage.migrate` runs them; nothing else imports this package."""
