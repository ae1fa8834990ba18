"""The only code that talks to SQL engines: connections, transactions, tables and migrations."""
