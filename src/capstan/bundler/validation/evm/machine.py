"""An EVM built from the executable specification of Ethereum, with a loop of our own that tells the collector.

Run in worker processes only: it replaces functions of the specification's modules, and runs one job at a time. Calls,
creations, storage, gas of all but the plainest opcodes and precompiles are the specification's own; `loop` is ours.
"""

import importlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from capstan.bundler.validation.evm.collector import Collector
from capstan.bundler.validation.evm.loop import Halts, Hook, Loop, Operation
from capstan.bundler.validation.evm.messages import Job, Missing
from capstan.bundler.validation.evm.precompiles import seconds_of
from capstan.bundler.validation.evm.world import fill
from capstan.bundler.validation.trace import TooSlow, Trace, visited

# The forks whose EVM can be chosen; later ones of Ethereum have changed blobs alone.
FORKS = ("cancun", "prague", "osaka")
_P256_ADDRESS = 0x100
_DELEGATION_PREFIX = bytes.fromhex("ef0100")
_DELEGATION_BYTES = 23


class ValidationOver(BaseException):
    """The entry point goes on to execute the operation: nothing after this is of interest."""


class Machine:
    """The EVM of one fork."""

    def __init__(self, fork: str, *, p256: bool) -> None:
        # What of the specification is used.
        self.parts = _modules(fork)
        self._precompiles = dict(self.parts.PRE_COMPILED_CONTRACTS)
        if p256:
            osaka = importlib.import_module("ethereum.forks.osaka.vm.precompiled_contracts.p256verify")
            self._precompiles[self.parts.Address(_P256_ADDRESS.to_bytes(20, "big"))] = osaka.p256verify
        operations: list[Operation | None] = [None] * 256
        for operation, function in self.parts.op_implementation.items():
            operations[operation.value] = function
        self._loop = Loop(operations, Halts(self.parts.exceptions))
        self._collector = Collector(self._code_size)
        self._hooks: list[Hook | None] = [None] * 256
        self._entry_point = b""
        self._seconds_left = 0.0

    def run(self, job: Job, codes: Mapping[bytes, bytes]) -> tuple[Trace | None, Missing]:
        """Run a job. The trace is None when state is missing."""
        state = self.parts.State()
        notes = fill(state, self.parts, job.accounts, codes)
        self.begin(job)
        try:
            self.parts.interpreter.process_message_call(self.message(job, state))
        except ValidationOver:
            self._collector.close()
        missing = notes.missing()
        root = self._collector.root
        if missing or root is None:
            return None, missing
        hashes, delegated = _hashes(visited(root), job, codes)
        hashed = frozenset(self._collector.hashed)
        return Trace(root=root, hashed=hashed, code_hashes=hashes, delegated=delegated), missing

    @property
    def steps(self) -> int:
        """How many instructions the last job took."""
        return self._loop.steps

    def begin(self, job: Job) -> None:
        """Prepare for a job: put our loop in the place of the specification's, which looks up what it calls."""
        self._collector = Collector(self._code_size)
        hooks = self._collector.hooks()
        self._hooks = [hooks.get(opcode) for opcode in range(256)]
        self._entry_point = job.entry_point
        self._seconds_left = job.seconds
        self._loop.steps = 0
        interpreter = self.parts.interpreter
        interpreter.process_message = self._process_message
        interpreter.process_create_message = self._process_create_message

    def message(self, job: Job, state: Any) -> Any:
        """The call of a job, as the specification has it."""
        parts = self.parts
        caller, target = parts.Address(job.caller), parts.Address(job.entry_point)
        block = parts.BlockEnvironment(
            chain_id=parts.U64(job.chain_id),
            state=state,
            block_gas_limit=parts.Uint(job.gas),
            # What operations may not look at while they are validated is left at nothing.
            block_hashes=[parts.Hash32(bytes(32))] * 256,
            coinbase=parts.Address(bytes(20)),
            number=parts.Uint(job.block_number),
            base_fee_per_gas=parts.Uint(0),
            time=parts.U256(job.timestamp),
            prev_randao=parts.Bytes32(bytes(32)),
            excess_blob_gas=parts.U64(0),
            parent_beacon_block_root=parts.Hash32(bytes(32)),
        )
        transaction = {
            "origin": caller,
            "gas_price": parts.Uint(0),
            "gas": parts.Uint(job.gas),
            "access_list_addresses": set(),
            "access_list_storage_keys": set(),
            "transient_storage": parts.TransientStorage(),
            "blob_versioned_hashes": (),
            "index_in_block": None,
            "tx_hash": None,
            "authorizations": (),
        }
        fields = parts.TransactionEnvironment.__dataclass_fields__
        environment = parts.TransactionEnvironment(
            **{key: value for key, value in transaction.items() if key in fields}
        )
        message = {
            "block_env": block,
            "tx_env": environment,
            "caller": caller,
            "target": target,
            "current_target": target,
            "gas": parts.Uint(job.gas),
            "value": parts.U256(0),
            "data": job.data,
            "code_address": target,
            "code": parts.get_account(state, target).code,
            "depth": parts.Uint(0),
            "should_transfer_value": True,
            "is_static": False,
            "accessed_addresses": {caller, target, *self._precompiles},
            "accessed_storage_keys": set(),
            "disable_precompiles": False,
            "parent_evm": None,
        }
        fields = parts.Message.__dataclass_fields__
        return parts.Message(**{key: value for key, value in message.items() if key in fields})

    def _code_size(self, evm: Any, address: bytes) -> int:
        parts = self.parts
        return len(parts.get_account(evm.message.block_env.state, parts.Address(address)).code)

    def _wait_for(self, message: Any) -> None:
        """Take off the time that a precompile will need. Raises `TooSlow` when that is more than there is."""
        self._seconds_left -= seconds_of(bytes(message.code_address), message.data, int(message.gas))
        if self._seconds_left < 0:
            raise TooSlow

    def _process_create_message(self, message: Any) -> Any:
        parts = self.parts
        evm = parts.process_create_message(message)
        if evm.error is not None and not isinstance(evm.error, parts.Revert):
            self._collector.fail_last(out_of_gas=isinstance(evm.error, parts.OutOfGasError))
        return evm

    def _process_message(self, message: Any) -> Any:
        """One call, as the specification's function of this name does it."""
        parts = self.parts
        state, transient = message.block_env.state, message.tx_env.transient_storage
        if message.depth > parts.STACK_DEPTH_LIMIT:
            raise parts.StackDepthLimitError("Stack depth limit reached")
        evm = parts.Evm(
            pc=parts.Uint(0),
            stack=[],
            memory=bytearray(),
            code=message.code,
            gas_left=message.gas,
            # The loop knows them itself.
            valid_jump_destinations=set(),
            logs=(),
            refund_counter=0,
            running=True,
            message=message,
            output=b"",
            accounts_to_delete=set(),
            return_data=b"",
            error=None,
            accessed_addresses=message.accessed_addresses,
            accessed_storage_keys=message.accessed_storage_keys,
        )
        parts.begin_transaction(state, transient)
        if message.should_transfer_value and message.value != 0:
            parts.move_ether(state, message.caller, message.current_target, message.value)
        record = self._collector.enter(message)
        if record.depth == 1 and record.caller == record.context == self._entry_point:
            raise ValidationOver
        try:
            if message.code_address in self._precompiles:
                if not getattr(message, "disable_precompiles", False):
                    self._wait_for(message)
                    self._precompiles[message.code_address](evm)
            else:
                self._loop.run(evm, record, self._hooks, self._collector)
        except parts.ExceptionalHalt as error:
            evm.gas_left = parts.Uint(0)
            evm.output = b""
            evm.error = error
        except parts.Revert as error:
            evm.error = error
        self._collector.leave(
            evm.output,
            failed=evm.error is not None,
            out_of_gas=isinstance(evm.error, parts.OutOfGasError),
            gas_used=int(message.gas) - int(evm.gas_left),
        )
        if evm.error:
            parts.rollback_transaction(state, transient)
        else:
            parts.commit_transaction(state, transient)
        return evm


def load() -> None:
    """Load what every fork needs, so that the first job does not wait for it."""
    for fork in FORKS:
        _modules(fork)


def _hashes(
    addresses: Iterable[bytes], job: Job, codes: Mapping[bytes, bytes]
) -> tuple[dict[bytes, bytes], frozenset[bytes]]:
    """The code hashes, before the run, of all that was run or looked at; and which of it are delegations."""
    hashes: dict[bytes, bytes] = {}
    delegated: set[bytes] = set()
    waiting = list(addresses)
    while waiting:
        address = waiting.pop()
        known = job.accounts.get(address)
        if known is None or address in hashes:
            continue
        hashes[address] = known.code_hash
        code = codes[known.code_hash]
        if len(code) == _DELEGATION_BYTES and code.startswith(_DELEGATION_PREFIX):
            delegated.add(address)
            waiting.append(code[len(_DELEGATION_PREFIX) :])
    return hashes, frozenset(delegated)


@lru_cache(maxsize=len(FORKS))
def _modules(fork: str) -> SimpleNamespace:
    """What of the specification's fork is used, under one roof."""
    if fork not in FORKS:
        raise ValueError(f"the fork {fork!r} is not one of {', '.join(FORKS)}")
    root = f"ethereum.forks.{fork}"
    interpreter = importlib.import_module(f"{root}.vm.interpreter")
    state = importlib.import_module(f"{root}.state")
    machine = importlib.import_module(f"{root}.vm")
    exceptions = importlib.import_module(f"{root}.vm.exceptions")
    instructions = importlib.import_module(f"{root}.vm.instructions")
    types = importlib.import_module(f"{root}.fork_types")
    numbers = importlib.import_module("ethereum_types.numeric")
    return SimpleNamespace(
        interpreter=interpreter,
        # As they are before ours take their place.
        process_create_message=interpreter.process_create_message,
        STACK_DEPTH_LIMIT=interpreter.STACK_DEPTH_LIMIT,
        PRE_COMPILED_CONTRACTS=interpreter.PRE_COMPILED_CONTRACTS,
        op_implementation=instructions.op_implementation,
        State=state.State,
        TransientStorage=state.TransientStorage,
        begin_transaction=state.begin_transaction,
        commit_transaction=state.commit_transaction,
        rollback_transaction=state.rollback_transaction,
        move_ether=state.move_ether,
        get_account=state.get_account,
        Evm=machine.Evm,
        Message=machine.Message,
        BlockEnvironment=machine.BlockEnvironment,
        TransactionEnvironment=machine.TransactionEnvironment,
        Account=types.Account,
        Address=types.Address,
        Trie=importlib.import_module(f"{root}.trie").Trie,
        Uint=numbers.Uint,
        U64=numbers.U64,
        U256=numbers.U256,
        Bytes32=importlib.import_module("ethereum_types.bytes").Bytes32,
        Hash32=importlib.import_module("ethereum.crypto.hash").Hash32,
        exceptions=exceptions,
        ExceptionalHalt=exceptions.ExceptionalHalt,
        Revert=exceptions.Revert,
        OutOfGasError=exceptions.OutOfGasError,
        StackDepthLimitError=exceptions.StackDepthLimitError,
    )
