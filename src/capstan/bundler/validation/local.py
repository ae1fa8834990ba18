"""The backend that runs operations in an EVM of ours, on state that any node can tell.

Needs no debug API. It foresees what state the run will need, fetches it in one round trip, runs, and if the run asked
for more, fetches that and runs again. Called by the service; the running itself happens in worker processes.
"""

import asyncio
from collections.abc import Mapping

import msgspec

from capstan.bundler.refusals import RULE_VIOLATION, Refusal
from capstan.bundler.validation.authorizations import check_nonce
from capstan.bundler.validation.evm.messages import AccountState, Job
from capstan.bundler.validation.needs import Lessons, Needs
from capstan.bundler.validation.probe import Facts, probe
from capstan.bundler.validation.runs import Run
from capstan.bundler.validation.state import BlockState, ChainState
from capstan.bundler.validation.trace import TooDeep, Trace
from capstan.bundler.validation.workers import JobTimeout, Workers
from capstan.chain.calls.models import BlockRef
from capstan.chain.errors import ChainError
from capstan.chain.registry import Network
from capstan.core.errors import ApiError
from capstan.core.hexes import keccak256, parse_address, parse_data, to_data, to_quantity
from capstan.userops.simulation import CALLER, nonce_override

# More than any honest operation needs: each round is a step in a chain of things that could not be foreseen.
_MOST_ROUNDS = 24
# `deposits` is the first variable of every entry point.
_DEPOSITS = bytes(32)


class _Listed(msgspec.Struct, frozen=True, rename="camel"):
    address: str
    storage_keys: list[str] = []


class _AccessList(msgspec.Struct, frozen=True, rename="camel"):
    access_list: list[_Listed] = []


class LocalTracer:
    """Traces operations of one network in worker processes."""

    def __init__(self, network: Network, chain_id: int, state: ChainState, workers: Workers) -> None:
        self._network = network
        self._chain_id = chain_id
        self._workers = workers
        self._state = state
        self._lessons = Lessons()
        self._probing: asyncio.Task[Facts] | None = None
        self._lists = True

    async def trace(self, run: Run) -> Trace:
        """Run the validation. Raises `Refusal` when it takes too long or needs too much, and the upstreams' errors."""
        facts = asyncio.ensure_future(self._facts())
        needs, kind = Needs(), _kind(run)
        _foresee(run, needs)
        known = self._lessons.recall(kind, run.operation.sender, needs)
        try:
            if known:
                state = await self._state.fetch(run.block, needs.accounts, needs.slots)
            else:
                state, _ = await asyncio.gather(
                    self._state.fetch(run.block, needs.accounts, needs.slots), self._list(run, needs)
                )
            for _ in range(_MOST_ROUNDS):
                state = await self._state.fetch(run.block, needs.accounts, needs.slots)
                trace = await self._attempt(run, state, needs, await facts)
                if trace is not None:
                    self._lessons.learn(kind, run.operation.sender, needs, trace.hashed)
                    return trace
        finally:
            facts.cancel()
        raise Refusal(
            RULE_VIOLATION, f"the validation reads state that depends on other state over {_MOST_ROUNDS} times in a row"
        )

    async def code_hashes(self, block: BlockRef, addresses: frozenset[bytes]) -> Mapping[bytes, bytes]:
        """The code hashes of these addresses at a block."""
        return await self._state.code_hashes(block, addresses)

    async def _attempt(self, run: Run, state: BlockState, needs: Needs, facts: Facts) -> Trace | None:
        """One run on what is known. None when it asked for more, which is now among the needs."""
        accounts = {address: state.account(address, needs.slots.get(address, ())) for address in needs.accounts}
        codes = state.codes
        if run.delegate is not None:
            check_nonce(run.operation, accounts[run.operation.sender].nonce)
            accounts, codes = _delegate(run, accounts, codes)
        if run.queued:
            slot, value = nonce_override(run.operation)
            known = accounts[run.entry_point]
            known = msgspec.structs.replace(known, storage={**known.storage, slot: value})
            accounts = {**accounts, run.entry_point: known}

        def make(has: set[bytes]) -> Job:
            wanted = {each.code_hash for each in accounts.values()} - has
            return Job(
                fork=facts.fork,
                p256=facts.p256,
                chain_id=self._chain_id,
                block_number=run.block.number,
                timestamp=run.block.timestamp,
                caller=CALLER,
                entry_point=run.entry_point,
                data=run.data,
                gas=run.gas,
                accounts=accounts,
                codes={each: codes[each] for each in wanted},
                seconds=self._workers.limits.job_seconds,
            )

        try:
            report = await self._workers.run(make)
        except JobTimeout:
            raise self._too_slow() from None
        if report.too_slow:
            raise self._too_slow()
        if report.too_deep:
            raise TooDeep
        needs.add(report.missing.accounts, report.missing.slots)
        return report.trace

    def _too_slow(self) -> Refusal:
        seconds = self._workers.limits.job_seconds
        return Refusal(RULE_VIOLATION, f"the validation takes longer than {seconds:g} seconds; it must do less")

    async def _list(self, run: Run, needs: Needs) -> None:
        """Ask a node what the operation will touch, if nodes can tell. Without an answer it is found out by trying."""
        if not self._lists or run.delegate is not None or run.queued:
            return
        transaction = {
            "from": to_data(CALLER),
            "to": to_data(run.entry_point),
            "data": to_data(run.data),
            "gas": to_quantity(run.gas),
        }
        try:
            answer = await self._state.ask("eth_createAccessList", [transaction], run.block)
            listed = msgspec.convert(answer, _AccessList).access_list
            needs.add(
                (parse_address(each.address) for each in listed),
                {parse_address(each.address): [parse_data(key) for key in each.storage_keys] for each in listed},
            )
        except (ChainError, ApiError, ValueError):
            # Never more than a hint. A node that cannot do it once is not asked again.
            self._lists = False

    async def _facts(self) -> Facts:
        if self._probing is None or (self._probing.done() and _failed(self._probing)):
            self._probing = asyncio.create_task(probe(self._network), name=f"EVM of {self._network.name}")
        return await asyncio.shield(self._probing)


def _failed(task: "asyncio.Task[Facts]") -> bool:
    return task.cancelled() or task.exception() is not None


def _kind(run: Run) -> tuple[bytes, ...]:
    """Operations of one kind touch the same things, but for what follows from their sender."""
    operation = run.operation
    return run.entry_point, operation.factory or b"", operation.paymaster or b""


def _foresee(run: Run, needs: Needs) -> None:
    """What every operation touches: its entities, the entry point and the helper that it creates senders with."""
    operation = run.operation
    entities = [operation.sender]
    if operation.factory is not None and not operation.is_delegation:
        entities.append(operation.factory)
    if operation.paymaster is not None:
        entities.append(operation.paymaster)
    if run.delegate is not None:
        entities.append(run.delegate)
    needs.add((CALLER, run.entry_point, run.sender_creator, *entities), {})
    slots = []
    for address in (operation.sender, operation.paymaster):
        if address is not None:
            deposit = int.from_bytes(keccak256(address.rjust(32, b"\0") + _DEPOSITS), "big")
            slots += [deposit.to_bytes(32, "big"), ((deposit + 1) % 2**256).to_bytes(32, "big")]
    slots.append(nonce_override(operation)[0])
    # The guard against reentrancy.
    slots.append((2).to_bytes(32, "big"))
    needs.add((), {run.entry_point: slots})


def _delegate(
    run: Run, accounts: Mapping[bytes, AccountState], codes: Mapping[bytes, bytes]
) -> tuple[dict[bytes, AccountState], dict[bytes, bytes]]:
    """The state after the EIP-7702 tuple of the operation: the sender runs the code of its delegate."""
    sender = accounts[run.operation.sender]
    changed = AccountState(sender.balance, sender.nonce + 1, run.delegation_hash, sender.storage)
    return {**accounts, run.operation.sender: changed}, {**codes, run.delegation_hash: run.delegation}
