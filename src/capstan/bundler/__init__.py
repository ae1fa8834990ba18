"""The ERC-4337 bundler. Built so far: the rules of its pool that need no node and no database."""
