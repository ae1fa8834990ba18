"""Reading contract state: many calls at one block, through Multicall3 where a network has it."""
