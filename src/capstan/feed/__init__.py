"""The WebSocket feed: subscriptions to what happens on a chain, and JSON-RPC calls on the same socket."""
