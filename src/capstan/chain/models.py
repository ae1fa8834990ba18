"""What the chain package is told about networks and their upstreams.

Plain values, made by the composition root from the settings and the catalogue, and read by the pool, the registry and
the RPC gateway. Nothing here reads a file or the environment.
"""

from typing import Literal

import msgspec

Family = Literal["evm", "solana"]
MethodGroup = Literal["debug", "trace", "txpool"]
BlockProof = Literal["header", "bloom", "receipts"]

MEBIBYTE = 1024 * 1024


class UpstreamSpec(msgspec.Struct, frozen=True):
    """One node or provider. The address and the headers may hold keys, so neither is ever shown."""

    name: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    # One attempt: from asking for a connection to the last byte of the answer.
    timeout_seconds: float = 10.0
    connect_timeout_seconds: float = 3.0
    # Traces of a single transaction reach 25 MB; anything far beyond that is a fault.
    max_response_bytes: int = 32 * MEBIBYTE
    # Ask for compressed answers: worth it over the internet, a loss on the same machine.
    gzip: bool = True
    # Share of the calls relative to the other upstreams of its tier that are about as good.
    weight: int = 1
    # Tier 0 is used first, tier 1 when nothing of tier 0 is healthy, and so on.
    tier: int = 0
    # Whether the node has the state of old blocks.
    archive: bool = True
    # Methods the node is used for, and not used for; a trailing * stands for the rest of the name. Nothing allowed
    # means that everything is.
    methods_allow: tuple[str, ...] = ()
    methods_deny: tuple[str, ...] = ()
    # The most calls in any second; 0 is unlimited.
    requests_per_second: int = 0
    # The most calls under way at once, each on a connection of its own.
    connections: int = 64
    # Whether a read that takes unusually long here may be asked of another upstream as well.
    hedge: bool = True
    # What is unusually long: longer than this share of the latest answers to the same method.
    hedge_quantile: float = 0.9

    def __repr__(self) -> str:
        return f"UpstreamSpec(name={self.name!r})"


class Attempt(msgspec.Struct, frozen=True):
    """One call to one upstream, for those who ask how an answer came about."""

    upstream: str
    # "ok", "node_error", or the way it failed: see `capstan.chain.errors.outcome_of`. Where answers are checked also
    # "agrees", "outvoted" and "refuted".
    outcome: str
    milliseconds: float
    # Whether it was made because the upstream asked first took unusually long.
    hedge: bool = False


class Quorum(msgspec.Struct, frozen=True):
    """So many of so many upstreams must give the same answer."""

    agree: int
    of: int


class Integrity(msgspec.Struct, frozen=True):
    """How the answers of a network's upstreams are checked."""

    # By method.
    quorum: dict[str, Quorum] = {}
    # Whether blocks, receipts and logs are checked against their block, and what the blocks of the chain prove.
    verify: bool = False
    proofs: frozenset[BlockProof] = frozenset()


class NetworkSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One network that is served: its facts, its upstreams in order of preference, and what it allows."""

    chain: str
    network: str
    family: Family
    upstreams: tuple[UpstreamSpec, ...]
    block_time_ms: int
    # After how many blocks a block counts as final where nodes do not say; None: never.
    finality_depth: int | None = None
    # A call may use several upstreams; together they take no longer than this.
    deadline_seconds: float = 20.0
    # To how many upstreams a signed transaction is given at once.
    broadcast: int = 3
    # The most reads that are given to a second upstream because the first is slow, as a share of all calls.
    hedge_share: float = 0.1
    # Whether blocks have a base fee (EIP-1559).
    eip1559: bool = True
    # Method groups that are refused unless named here.
    method_groups: frozenset[MethodGroup] = frozenset()
    # hardhat_, evm_ and anvil_ methods: they rewrite the chain, so only a development chain has them.
    dev_methods: bool = False
    # Methods of this chain alone, such as linea_estimateGas; treated as reads.
    extra_methods: frozenset[str] = frozenset()
    # The most blocks one eth_getLogs may span; None leaves it to the node.
    max_log_range: int | None = None
    # How answers are checked; None: not at all.
    integrity: Integrity | None = None

    @property
    def name(self) -> str:
        """`chain/network`, as in the path of the API."""
        return f"{self.chain}/{self.network}"
