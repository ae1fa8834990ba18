"""A Solana JSON-RPC endpoint for development, over LiteSVM.

`python -m capstan.devnet.solana` runs the node; `SolanaNode` runs that as a child process and is what the rest of
Capstan uses. Importing this package must stay cheap: the child imports it before anything else, so it may not pull in
other parts of Capstan, nor the node's own modules.
"""

from capstan.devnet.solana.process import SolanaNode, SolanaNodeError

__all__ = ["SolanaNode", "SolanaNodeError"]
