"""Gas sponsorship: whether an operation is paid for, the paymaster's signature, and the ledger of what it costs."""
