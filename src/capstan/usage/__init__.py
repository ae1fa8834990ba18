"""The usage ledger: what every key used, by method and network, per minute and per day."""
