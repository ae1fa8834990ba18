"""The transfer index: which tokens moved, who holds which NFT, and which tokens an address ever touched."""
