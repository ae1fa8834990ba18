"""NFTs: metadata, collections, and what an address owns."""
