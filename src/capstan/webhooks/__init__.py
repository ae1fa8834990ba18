"""Webhooks: who wants to hear of what, the events that match, and their delivery."""
