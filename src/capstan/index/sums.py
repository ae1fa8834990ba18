"""The sums over transfers: who holds which NFT, the owners and ids of a collection, the tokens a holder touched.

Called by the transfer writer inside its transaction with transfers that were just added or removed. Every sum is a
plain total over the rows of `transfers`, so it does not matter in which order they come: history that arrives after the
present gives the same sums, and a removed row takes back exactly what it gave. The caller holds the network's lock.
Amounts of ERC-20 are never summed: balances are read from the chain. A range of ids that moved at once costs as much as
a single id: the owner's count grows by its length, and the range itself is kept as one row.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable

from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.index.bulk import BulkTable, Row
from capstan.index.models import ZERO_ADDRESS, Standard, Transfer
from capstan.storage.schema import nft_collections, nft_counts, nft_holdings, nft_ranges, token_holders

# The columns of a row of `nft_ranges` that make its key.
_RANGE_KEY = len(nft_ranges.primary_key.columns)


class _Change:
    """What some transfers change in one collection."""

    __slots__ = ("erc721_supply", "ids", "owners", "seen", "supply")

    def __init__(self) -> None:
        self.owners = 0
        self.ids = 0
        self.supply = 0
        self.erc721_supply = 0
        self.seen = {Standard.ERC721: 0, Standard.ERC1155: 0}


class _Changes:
    """What some transfers of one network change."""

    __slots__ = ("collections", "counts", "holdings", "network_id", "ranges", "sign", "tokens")

    def __init__(self, network_id: int, sign: int) -> None:
        self.network_id = network_id
        self.sign = sign
        self.tokens: dict[Row, int] = defaultdict(int)
        self.holdings: dict[Row, int] = defaultdict(int)
        self.counts: dict[Row, int] = defaultdict(int)
        self.collections: dict[bytes, _Change] = defaultdict(_Change)
        self.ranges: list[Row] = []


class Sums:
    """Keeps the sums of all networks."""

    def __init__(self, *, sqlite: bool) -> None:
        self._holdings = BulkTable(nft_holdings, sqlite=sqlite)
        self._ranges = BulkTable(nft_ranges, sqlite=sqlite)
        self._counts = BulkTable(nft_counts, sqlite=sqlite)
        self._collections = BulkTable(nft_collections, sqlite=sqlite)
        self._holders = BulkTable(token_holders, sqlite=sqlite)

    async def add(self, connection: AsyncConnection, network_id: int, transfers: Iterable[Transfer], sign: int) -> None:
        """Count transfers that were added (`sign` 1) or removed (-1)."""
        changes = _Changes(network_id, sign)
        for transfer in transfers:
            if transfer.token_id is None:
                _count_token(changes, transfer)
            else:
                _count_nft(changes, transfer, transfer.token_id)
        if changes.tokens:
            await self._add_tokens(connection, changes)
        if changes.collections:
            await self._add_ranges(connection, changes)
            await self._add_holdings(connection, changes)
            await self._add_counts(connection, changes)
            await self._add_collections(connection, changes)

    async def _add_tokens(self, connection: AsyncConnection, changes: _Changes) -> None:
        if changes.sign > 0:
            await self._holders.add(connection, [(*key, count) for key, count in changes.tokens.items()])
            return
        await self._add_numbers(connection, self._holders, changes.tokens, int)

    async def _add_ranges(self, connection: AsyncConnection, changes: _Changes) -> None:
        if changes.sign > 0:
            await self._ranges.insert(connection, changes.ranges)
        else:
            await self._ranges.delete(connection, [row[:_RANGE_KEY] for row in changes.ranges])

    async def _add_holdings(self, connection: AsyncConnection, changes: _Changes) -> None:
        """Write what each owner holds of each id, and count the holdings of ERC-1155 by owner and by id."""
        deltas = {key: delta for key, delta in changes.holdings.items() if delta}
        present = await self._holdings.load(connection, deltas)
        written: list[Row] = []
        gone: list[Row] = []
        for key, delta in deltas.items():
            row = present.get(key)
            before = int(row[0]) if row is not None else 0
            after = before + delta
            if after:
                written.append((*key, str(after), after > 0))
            else:
                gone.append(key)
            step = (after > 0) - (before > 0)
            if step and key[4] == Standard.ERC1155:
                network_id, contract, token_id, owner, _standard = key
                changes.counts[(network_id, contract, owner)] += step
                changes.counts[(network_id, contract, token_id)] += step
        await self._holdings.replace(connection, written)
        await self._holdings.delete(connection, gone)

    async def _add_counts(self, connection: AsyncConnection, changes: _Changes) -> None:
        for key, step in (await self._add_numbers(connection, self._counts, changes.counts, str)).items():
            change = changes.collections[key[1]]
            # Addresses have 20 bytes, ids 32.
            if len(key[2]) == len(ZERO_ADDRESS):
                change.owners += step
            else:
                change.ids += step

    async def _add_numbers(
        self, connection: AsyncConnection, table: BulkTable, deltas: dict[Row, int], shown: Callable[[int], object]
    ) -> dict[Row, int]:
        """Add to the one number beside each key, kept as `shown` makes it.

        Returns which numbers came above zero (1), and which are not any more (-1).
        """
        deltas = {key: delta for key, delta in deltas.items() if delta}
        present = await table.load(connection, deltas)
        steps: dict[Row, int] = {}
        written: list[Row] = []
        gone: list[Row] = []
        for key, delta in deltas.items():
            row = present.get(key)
            before = int(row[0]) if row is not None else 0
            after = before + delta
            if after:
                written.append((*key, shown(after)))
            else:
                gone.append(key)
            if step := (after > 0) - (before > 0):
                steps[key] = step
        await table.replace(connection, written)
        await table.delete(connection, gone)
        return steps

    async def _add_collections(self, connection: AsyncConnection, changes: _Changes) -> None:
        network_id = changes.network_id
        keys = [(network_id, contract) for contract in changes.collections]
        present = await self._collections.load(connection, keys)
        written: list[Row] = []
        gone: list[Row] = []
        for contract, change in changes.collections.items():
            key = (network_id, contract)
            owners, ids, supply, erc721_supply, erc721, erc1155 = present.get(key, (0, 0, "0", "0", 0, 0))
            values = (
                owners + change.owners,
                ids + change.ids,
                str(int(supply) + change.supply),
                str(int(erc721_supply) + change.erc721_supply),
                erc721 + change.seen[Standard.ERC721],
                erc1155 + change.seen[Standard.ERC1155],
            )
            # Nothing was ever transferred: then the row was never there.
            if any(values[4:]):
                written.append((*key, *values))
            else:
                gone.append(key)
        await self._collections.replace(connection, written)
        await self._collections.delete(connection, gone)


def _count_token(changes: _Changes, transfer: Transfer) -> None:
    if not transfer.amount:
        # Anybody can make a token say that nothing was sent in somebody's name.
        return
    for party in {transfer.sender, transfer.receiver}:
        if party != ZERO_ADDRESS:
            changes.tokens[(changes.network_id, party, transfer.contract)] += changes.sign


def _count_nft(changes: _Changes, transfer: Transfer, token_id: int) -> None:
    network_id, contract, amount = changes.network_id, transfer.contract, changes.sign * transfer.amount
    change = changes.collections[contract]
    change.seen[transfer.standard] += changes.sign
    unique, last = transfer.standard is Standard.ERC721, transfer.last_token_id
    key_id = token_id.to_bytes(32)
    for party, step in ((transfer.sender, -amount), (transfer.receiver, amount)):
        if party == ZERO_ADDRESS:
            # Out of nothing is a mint, into nothing a burn.
            change.supply -= step
            change.erc721_supply -= step if unique else 0
            continue
        if unique:
            changes.counts[(network_id, contract, party)] += step
        if last is None:
            changes.holdings[(network_id, contract, key_id, party, int(transfer.standard))] += step
    if last is not None:
        place = (network_id, contract, transfer.block_number, transfer.log_index)
        changes.ranges.append((*place, key_id, last.to_bytes(32), transfer.sender, transfer.receiver))
