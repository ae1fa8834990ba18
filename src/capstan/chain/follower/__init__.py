"""The canonical stream: one ordered, gapless walk over the blocks of each EVM network, with their content."""
