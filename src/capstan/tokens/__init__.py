"""ERC-20 tokens: metadata, and the balances of an address."""
