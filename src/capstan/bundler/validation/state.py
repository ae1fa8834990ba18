"""State of the chain at one block, fetched with as few round trips as possible and kept while the block is new.

Called by the local backend. Everything that is asked for at once travels at once: `eth_getProof` for each account with
its slots where upstreams have that, single questions where they have not. Code is kept by its hash for ever, as far as
there is room. Nothing is written to the chain or to the database.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from capstan.bundler.validation.evm.messages import AccountState
from capstan.chain.calls.blocks import ask_block
from capstan.chain.calls.models import BlockChanged, BlockRef
from capstan.chain.errors import EveryUpstreamFailed, NodeError, NodeUnable, is_method_missing
from capstan.chain.registry import Network
from capstan.core.hexes import keccak256, parse_data, parse_quantity, to_data, to_quantity

log = structlog.get_logger(__name__)

_BLOCKS_KEPT = 4
_CODES_KEPT = 1024
_ADDRESSES_KEPT = 16_384
_QUESTIONS_AT_ONCE = 64
EMPTY_CODE_HASH = keccak256(b"")


class _SlotProof(msgspec.Struct, frozen=True):
    key: str
    value: str


class _Proof(msgspec.Struct, frozen=True, rename="camel"):
    balance: str
    nonce: str
    code_hash: str
    storage_proof: list[_SlotProof] = []


class BlockState:
    """What is known of one block."""

    def __init__(self) -> None:
        # balance, nonce, code hash
        self.accounts: dict[bytes, tuple[int, int, bytes]] = {}
        self.storage: dict[bytes, dict[bytes, bytes]] = {}
        # The code of these accounts, by its hash.
        self.codes: dict[bytes, bytes] = {EMPTY_CODE_HASH: b""}

    def lacks(self, accounts: Iterable[bytes], slots: Mapping[bytes, Iterable[bytes]]) -> dict[bytes, list[bytes]]:
        """Accounts that are not known, or of which one of these slots is not, with the slots to ask for."""
        lacking: dict[bytes, list[bytes]] = {address: [] for address in accounts if address not in self.accounts}
        for address, keys in slots.items():
            known = self.storage.get(address, {})
            # Who is known to have neither code nor nonce has no storage.
            if self.is_blank(address):
                continue
            unknown = [key for key in keys if key not in known]
            if unknown:
                lacking.setdefault(address, []).extend(unknown)
        return lacking

    def is_blank(self, address: bytes) -> bool:
        """Whether the account is known to have neither code nor nonce."""
        known = self.accounts.get(address)
        return known is not None and known[1] == 0 and known[2] == EMPTY_CODE_HASH

    def account(self, address: bytes, slots: Iterable[bytes]) -> AccountState:
        """An account, with those of the slots that are known."""
        balance, nonce, code_hash = self.accounts[address]
        known = self.storage.get(address, {})
        if self.is_blank(address):
            values = {key: bytes(32) for key in slots}
        else:
            values = {key: known[key] for key in slots if key in known}
        return AccountState(balance.to_bytes(32, "big"), nonce, code_hash, values)


class ChainState:
    """The state of one network's blocks."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._blocks: OrderedDict[str, BlockState] = OrderedDict()
        self._codes: OrderedDict[bytes, bytes] = OrderedDict()
        # The code hash that an address had when it was last seen: most never change.
        self._last_hash: OrderedDict[bytes, bytes] = OrderedDict()
        self._has_proofs = True
        self._by_hash = True
        self._limit = asyncio.Semaphore(_QUESTIONS_AT_ONCE)
        # How often upstreams were asked and waited for, and how many questions that were.
        self.round_trips = 0
        self.questions = 0

    def at(self, block: BlockRef) -> BlockState:
        """What is known of a block. The last few are kept."""
        state = self._blocks.get(block.hash)
        if state is None:
            state = self._blocks[block.hash] = BlockState()
            while len(self._blocks) > _BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        return state

    async def fetch(
        self, block: BlockRef, accounts: Iterable[bytes], slots: Mapping[bytes, Iterable[bytes]]
    ) -> BlockState:
        """Make sure that all this is known. Raises `BlockChanged`, and what the upstreams raise."""
        state = self.at(block)
        lacking = state.lacks(accounts, slots)
        if lacking:
            self.round_trips += 1
            await self._gather(block, state, lacking)
            if not self._by_hash:
                await self._check_block(block)
        return state

    async def code_hashes(self, block: BlockRef, addresses: Iterable[bytes]) -> dict[bytes, bytes]:
        """The code hashes of these addresses."""
        wanted = frozenset(addresses)
        state = await self.fetch(block, wanted, {})
        return {address: state.accounts[address][2] for address in wanted}

    async def ask(self, method: str, params: list[object], block: BlockRef, after: Sequence[object] = ()) -> Any:
        """One question about a block, which is named by its hash where upstreams understand that (EIP-1898).

        The block is the last parameter, but for those in `after`.
        """
        self.questions += 1
        async with self._limit:
            if self._by_hash:
                try:
                    return await self._call(method, [*params, {"blockHash": block.hash}, *after], block)
                except NodeUnable:
                    raise
                except NodeError as error:
                    if is_method_missing(error):
                        raise
                result = await self._call(method, [*params, to_quantity(block.number), *after], block)
                log.info("validation.block_by_number", network=self._network.name)
                self._by_hash = False
                return result
            return await self._call(method, [*params, to_quantity(block.number), *after], block)

    async def _check_block(self, block: BlockRef) -> None:
        """What was asked for by number belongs to the block only if it still has that number."""
        now = await ask_block(self._network, to_quantity(block.number))
        if now.hash != block.hash:
            self._blocks.pop(block.hash, None)
            raise BlockChanged(f"block {block.number} of {self._network.name} was replaced while its state was read")

    async def _call(self, method: str, params: list[object], block: BlockRef) -> Any:
        # A trace is much work; a node that is slow with it is not helped by a second one.
        hedge = not method.startswith("debug_")
        body = msgspec.json.encode(params)
        raw = await self._network.pool.call(method, body, needs_block=block.number, hedge=hedge)
        return msgspec.json.decode(raw)

    async def _gather(self, block: BlockRef, state: BlockState, lacking: Mapping[bytes, list[bytes]]) -> None:
        try:
            await asyncio.gather(*(self._account(block, state, each, keys) for each, keys in lacking.items()))
        except NodeUnable as error:
            raise BlockChanged(
                f"no upstream of {self._network.name} has block {block.number}: {error.message}"
            ) from error
        except NodeError as error:
            raise EveryUpstreamFailed(
                f"The nodes of {self._network.name} do not tell the state of a block: {error.message[:200]}"
            ) from error
        except (ValueError, TypeError) as error:
            raise EveryUpstreamFailed(
                f"An upstream of {self._network.name} answered a question for state with nonsense."
            ) from error

    async def _account(self, block: BlockRef, state: BlockState, address: bytes, keys: list[bytes]) -> None:
        if self._has_proofs:
            try:
                return await self._by_proof(block, state, address, keys)
            except NodeError as error:
                if not is_method_missing(error):
                    raise
                if self._has_proofs:
                    log.info("validation.no_proofs", network=self._network.name)
                self._has_proofs = False
        return await self._one_by_one(block, state, address, keys)

    async def _by_proof(self, block: BlockRef, state: BlockState, address: bytes, keys: list[bytes]) -> None:
        shown = to_data(address)
        last = self._last_hash.get(address)
        known = address in state.accounts or (last is not None and (last in self._codes or last == EMPTY_CODE_HASH))
        asking = self.ask("eth_getProof", [shown, [to_data(key) for key in keys]], block)
        if known:
            answer, code = await asking, None
        else:
            answer, code = await asyncio.gather(asking, self.ask("eth_getCode", [shown], block))
        proof = msgspec.convert(answer, _Proof)
        code_hash = parse_data(proof.code_hash)
        if not any(code_hash):
            # Some nodes tell so of an account that does not exist.
            code_hash = EMPTY_CODE_HASH
        kept = b"" if code_hash == EMPTY_CODE_HASH else self._codes.get(code_hash)
        if kept is None and code is not None:
            kept = parse_data(code)
        if kept is None:
            kept = parse_data(await self.ask("eth_getCode", [shown], block))
        if keccak256(kept) != code_hash:
            raise ValueError("the code is not that of the account")
        self._keep(state, address, code_hash, kept)
        state.accounts[address] = _number(proof.balance), _number(proof.nonce), code_hash
        values = {_word(each.key): _word(each.value) for each in proof.storage_proof}
        state.storage.setdefault(address, {}).update({key: values[key] for key in keys})

    async def _one_by_one(self, block: BlockRef, state: BlockState, address: bytes, keys: list[bytes]) -> None:
        shown = to_data(address)
        whole = address not in state.accounts
        questions = [self.ask("eth_getStorageAt", [shown, to_data(key)], block) for key in keys]
        if whole:
            questions += [
                self.ask(method, [shown], block)
                for method in ("eth_getBalance", "eth_getTransactionCount", "eth_getCode")
            ]
        answers = await asyncio.gather(*questions)
        state.storage.setdefault(address, {}).update(
            {key: _word(answer) for key, answer in zip(keys, answers, strict=False)}
        )
        if whole:
            balance, nonce, code = answers[len(keys) :]
            kept = parse_data(code)
            code_hash = keccak256(kept)
            self._keep(state, address, code_hash, kept)
            state.accounts[address] = _number(balance), _number(nonce), code_hash

    def _keep(self, state: BlockState, address: bytes, code_hash: bytes, code: bytes) -> None:
        state.codes[code_hash] = code
        for table, key, value, most in (
            (self._last_hash, address, code_hash, _ADDRESSES_KEPT),
            (self._codes, code_hash, code, _CODES_KEPT),
        ):
            table[key] = value
            table.move_to_end(key)
            if len(table) > most:
                table.popitem(last=False)


def _number(text: object) -> int:
    return parse_quantity(text, lenient=True)


def _word(text: object) -> bytes:
    """A word in any of the ways in which nodes write it: padded or not, of even or odd length."""
    if not isinstance(text, str) or not text.startswith("0x"):
        raise ValueError("a word is not hexadecimal")
    return int(text[2:] or "0", 16).to_bytes(32, "big")
