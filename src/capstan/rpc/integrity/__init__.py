"""Answers that are checked before they are passed on: by other upstreams (quorum), or by the block itself (verify).

    guard      the entry: which check a call needs, and what becomes of an upstream that fails it
    voting     several upstreams, one answer
    verifying  blocks, receipts and logs against header hash, bloom and receipts root
    evidence   the headers and receipts that this rests on, fetched, proved and kept for a while
    claims     the rules of each check, without input or output
    filters    the argument of eth_getLogs, and whether a log matches it
    sameness   when two answers are the same
    pinning    the block that `latest` means for all who are asked
    metrics    what is counted

A network that has neither setting never comes here.
"""
