"""The tokens that an address holds, read at one block and put into their order.

Called by the token service. The index says which contracts to ask; what an address holds is what the contracts say.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal

import msgspec

from capstan.chain.calls import decoding
from capstan.chain.calls.models import BlockRef, call
from capstan.chain.registry import Network
from capstan.core.decimals import format_units
from capstan.core.hexes import to_checksum_address
from capstan.core.money import amount, plain, product
from capstan.tokens.logos import Logos
from capstan.tokens.metadata import CALLS_PER_TOKEN, TokenBook, facts_from, questions
from capstan.tokens.models import TokenBalance, TokenFacts
from capstan.tokens.ports import Contracts, Price, Prices

# Up to so many tokens that are new to us are asked for their names along with their balances, in one question. Of more,
# only those with a balance are asked, in a second one: an address with thousands of tokens holds few of them.
_NEW_AT_ONCE = 250


class Holding(msgspec.Struct, frozen=True):
    """One line of the list, with what it is sorted by."""

    value: Decimal | None
    contract: bytes
    shown: TokenBalance


class BalanceReader:
    """Reads balances, names and prices at one block."""

    def __init__(self, contracts: Contracts, book: TokenBook, prices: Prices, logos: Logos) -> None:
        self._contracts = contracts
        self._book = book
        self._prices = prices
        self._logos = logos

    async def holdings(
        self, network: Network, chain_id: int, block: BlockRef, holder: bytes, tokens: Sequence[bytes]
    ) -> tuple[TokenBalance, ...]:
        """What the holder has of these tokens, the most valuable first. Raises `BlockChanged`."""
        known = await self._book.known(network, tokens)
        balances, known = await self._balances(network, block, holder, tokens, known)
        prices = await self._prices.prices(network, block, balances)
        lines = [
            self._line(chain_id, token, units, known[token], prices.get(token)) for token, units in balances.items()
        ]
        # By value, the highest first; those without a price last; equal ones by contract.
        lines.sort(key=lambda line: (line.value is None, -(line.value or 0), line.contract))
        return tuple(line.shown for line in lines)

    async def _balances(
        self,
        network: Network,
        block: BlockRef,
        holder: bytes,
        tokens: Sequence[bytes],
        known: Mapping[bytes, TokenFacts],
    ) -> tuple[dict[bytes, int], dict[bytes, TokenFacts]]:
        """The balances that are not zero, and what is known of those tokens."""
        new = [token for token in tokens if token not in known]
        together = new if len(new) <= _NEW_AT_ONCE else []
        asked = [call(token, "balanceOf(address)", holder) for token in tokens]
        upgrades = self._book.upgrades
        asked += [question for token in together for question in questions(token)]
        results = await self._contracts.read(network, block, asked)
        balances = {
            token: units
            for token, result in zip(tokens, results[: len(tokens)], strict=True)
            # A contract that reverts, or answers with too little, holds nothing that could be shown.
            if (units := decoding.unsigned(result))
        }
        learned = _facts(together, results[len(tokens) :])
        late = [token for token in balances if token not in known and token not in learned]
        if late:
            more = [question for token in late for question in questions(token)]
            learned |= _facts(late, await self._contracts.read(network, block, more))
        await self._book.learn(network, learned, upgrades=upgrades)
        return balances, {**known, **learned}

    def _line(self, chain_id: int, token: bytes, units: int, facts: TokenFacts, price: Price | None) -> Holding:
        value = None
        if price is not None and facts.decimals is not None:
            value = product(amount(units, facts.decimals), price.usd)
        shown = TokenBalance(
            contract=to_checksum_address(token),
            symbol=facts.symbol,
            name=facts.name,
            decimals=facts.decimals,
            balance=str(units),
            formatted_balance=None if facts.decimals is None else format_units(units, facts.decimals),
            usd_value=None if value is None else plain(value),
            logo_url=self._logos.find(chain_id, token),
        )
        return Holding(value, token, shown)


def _facts(tokens: Sequence[bytes], results: Sequence[bytes | None]) -> dict[bytes, TokenFacts]:
    return {
        token: facts_from(results[CALLS_PER_TOKEN * place : CALLS_PER_TOKEN * (place + 1)])
        for place, token in enumerate(tokens)
    }
