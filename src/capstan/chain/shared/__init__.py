"""What processes of one cluster share of a network over Redis: answers of upstreams, blocks, pending transactions."""
