"""Accounts, API keys and scopes: who is calling, and what the call may touch."""
