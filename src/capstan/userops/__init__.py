"""ERC-4337 user operations of every entry point version: parsing, rendering, packing, hashing, decoding. No I/O."""
