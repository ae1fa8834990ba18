"""What the full validation of a user operation costs, by ERC-7562 and without a debug API.

A development chain gets operations that each create an account, on entry point 0.7. The first is validated cold:
nothing is known of the network. The others are warm: each has another sender, and a new block comes before it.
Printed are the round trips to the node and the questions in them, and how many operations one core validates in a
second, from the processor time of the worker process and of the service beside it, which other work on the machine
disturbs little. The baseline is the node's own `debug_traceCall` with its struct logger, timed in the same run: what a
validation by trace would cost here otherwise, before any rule is judged.

    python bench/validation.py [--operations 40]
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from eth_account import Account
from eth_account.messages import encode_defunct

from capstan.bundler.validation.making import NetworkValidation
from capstan.bundler.validation.workers import WorkerLimits, Workers
from capstan.chain.calls.blocks import HeadBlocks
from capstan.chain.calls.reader import StateReader
from capstan.chain.heads.latest import LatestHeads
from capstan.chain.models import NetworkSpec, UpstreamSpec
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from capstan.core.hexes import parse_address, parse_data, to_data, to_quantity
from capstan.devnet.artifacts import call_data
from capstan.devnet.deploy import deploy_all
from capstan.devnet.evm import CHAIN_ID, EvmNode
from capstan.devnet.install import ensure_node_project
from capstan.devnet.models import Deployment, DevAccount
from capstan.devnet.rpc import NodeRpc
from capstan.userops.codec import codec_for, encode_handle_ops
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version

VERSION: Version = "0.7"
NEVER = 3600.0
MOST_COLD, MOST_WARM = 3, 1
TICKS = os.sysconf("SC_CLK_TCK")


async def make_operations(rpc: NodeRpc, deployment: Deployment, count: int) -> list[UserOperation]:
    """Operations that create an account each, funded and signed."""
    owner, payer = deployment.accounts[3], deployment.accounts[4]
    factory, entry_point = deployment.factories[VERSION], parse_address(deployment.entry_points[VERSION])
    operations = []
    for salt in range(count):
        question = call_data("getAddress(address,uint256)", owner.address, salt)
        answer = await rpc.call("eth_call", {"to": factory, "data": to_data(question)}, "latest")
        unsigned = UserOperation(
            sender=parse_data(answer)[12:],
            nonce=0,
            factory=parse_address(factory),
            factory_data=call_data("createAccount(address,uint256)", owner.address, salt),
            call_gas_limit=50_000,
            verification_gas_limit=500_000,
            pre_verification_gas=60_000,
            max_fee_per_gas=10**9,
            max_priority_fee_per_gas=10**9,
        )
        digest = codec_for(VERSION).hash(unsigned, entry_point, CHAIN_ID)
        signature = Account.sign_message(encode_defunct(digest), owner.private_key).signature
        operations.append(msgspec.structs.replace(unsigned, signature=bytes(signature)))
        await send_ether(rpc, payer, salt, "0x" + unsigned.sender.hex())
    await rpc.call("evm_mine")
    return operations


async def send_ether(rpc: NodeRpc, payer: DevAccount, nonce: int, to: str) -> None:
    """Put one ether into an account, with the next block."""
    transaction = {
        "type": 2,
        "chainId": CHAIN_ID,
        "nonce": nonce,
        "to": parse_address(to),
        "value": 10**18,
        "gas": 21_000,
        "maxFeePerGas": 20 * 10**9,
        "maxPriorityFeePerGas": 10**9,
    }
    signed = Account.sign_transaction(transaction, payer.private_key)
    await rpc.call("eth_sendRawTransaction", to_data(bytes(signed.raw_transaction)))


@asynccontextmanager
async def validation_of(url: str, workers: Workers) -> AsyncIterator[NetworkValidation]:
    """The validation of the network of one node, in our own EVM."""
    clock = SystemClock()
    registry, heads = ChainRegistry(open_session(), clock), LatestHeads(clock)
    spec = NetworkSpec(
        chain="ethereum",
        network="devnet",
        family="evm",
        upstreams=(UpstreamSpec(name="node", url=url),),
        block_time_ms=1000,
        dev_methods=True,
    )
    registry.replace([spec])
    try:
        yield NetworkValidation(
            registry.get("ethereum", "devnet"),
            CHAIN_ID,
            blocks=HeadBlocks(heads, clock),
            reader=StateReader(lambda _network: ""),
            workers=workers,
            clock=clock,
            backend="local",
        )
    finally:
        await registry.close()
        await heads.close()


def cpu_seconds(process: int) -> float:
    """The processor time that a process has used so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def measure(
    rpc: NodeRpc, url: str, deployment: Deployment, operations: Sequence[UserOperation]
) -> dict[str, float]:
    """Validate all of them, one after the other."""
    workers = Workers(WorkerLimits(processes=1))
    try:
        async with validation_of(url, workers) as validation:
            validator = validation.validator(VERSION, parse_address(deployment.entry_points[VERSION]))
            await validator.validate(operations[0])
            cold, cold_questions = validation.state.round_trips, validation.state.questions
            # The rest of what is done once: the process has loaded its modules and looked through the code.
            await rpc.call("evm_mine")
            await validator.validate(operations[1])
            (process,) = workers.idle
            worker, own = cpu_seconds(process), time.process_time()
            trips, questions, began = validation.state.round_trips, validation.state.questions, time.monotonic()
            for operation in operations[2:]:
                await rpc.call("evm_mine")
                await validator.validate(operation)
            count = len(operations) - 2
            return {
                "cold_round_trips": cold,
                "cold_questions": cold_questions,
                "warm_round_trips": (validation.state.round_trips - trips) / count,
                "warm_questions": (validation.state.questions - questions) / count,
                "worker_cpu_ms": (cpu_seconds(process) - worker) / count * 1000,
                "service_cpu_ms": (time.process_time() - own) / count * 1000,
                "elapsed_ms": (time.monotonic() - began) / count * 1000,
            }
    finally:
        await workers.close()


async def baseline(rpc: NodeRpc, deployment: Deployment, operation: UserOperation) -> float:
    """Milliseconds that the node takes to trace the same call with its struct logger."""
    data = encode_handle_ops(VERSION, [operation], parse_address(deployment.accounts[9].address))
    transaction = {
        "from": deployment.accounts[9].address,
        "to": deployment.entry_points[VERSION],
        "data": to_data(data),
        "gas": to_quantity(2_000_000),
    }
    began, rounds = time.monotonic(), 3
    for _ in range(rounds):
        await rpc.call("debug_traceCall", transaction, "latest", {"disableMemory": True})
    return (time.monotonic() - began) / rounds * 1000


async def run(count: int) -> bool:
    """Run all of it and print what was found. Whether the goals were met."""
    project = ensure_node_project(print)
    node = EvmNode(project, block_time=NEVER)
    await node.start()
    try:
        deployment = await deploy_all(node.url, print, project=project)
        async with NodeRpc(node.url) as rpc:
            operations = await make_operations(rpc, deployment, count)
            found = await measure(rpc, node.url, deployment, operations)
            traced = await baseline(rpc, deployment, operations[-1])
    finally:
        await node.stop()
    per_core = 1000 / (found["worker_cpu_ms"] + found["service_cpu_ms"])
    print(f"cold: {found['cold_round_trips']:.0f} round trips for state, {found['cold_questions']:.0f} questions")
    print(f"warm: {found['warm_round_trips']:.2f} round trips for state, {found['warm_questions']:.1f} questions")
    print(f"processor time: {found['worker_cpu_ms']:.1f} ms worker, {found['service_cpu_ms']:.1f} ms service")
    print(f"validated per second and core: {per_core:.1f}; one by one, {found['elapsed_ms']:.0f} ms each")
    print(
        f"the node's struct-log trace of the same call: {traced:.0f} ms, {traced / found['elapsed_ms']:.1f} times that"
    )
    print(json.dumps({**found, "per_second_and_core": per_core, "struct_log_ms": traced}))
    good = found["cold_round_trips"] <= MOST_COLD and found["warm_round_trips"] <= MOST_WARM
    print(f"{'good' if good else 'NOT GOOD'}: at most {MOST_COLD} round trips cold, {MOST_WARM} warm")
    return good


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description="What the validation of a user operation costs.")
    parser.add_argument("--operations", type=int, default=40)
    options = parser.parse_args()
    raise SystemExit(0 if asyncio.run(run(max(3, options.operations))) else 1)


if __name__ == "__main__":
    main()
