"""What token and NFT data have in common: parameters, reading at one block, responses, pages of transfers."""
