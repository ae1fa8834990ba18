"""Smart wallets: deterministic addresses of ERC-4337 accounts, and what the chain says of them."""
