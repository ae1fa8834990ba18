"""What a block proves about itself: its header's hash, its bloom, and the roots of its receipts and transactions.

    rlp           the encoding that all of it is hashed in
    trie          the root of a Merkle-Patricia trie over a list
    bloom         logs in 2,048 bits
    header        a block's hash from its fields
    receipts      receipts as they are hashed, and their root
    transactions  transactions as they are hashed, and their root

Pure computation: nothing here asks a node, and nothing here decides what is done about an answer that is wrong.
"""
