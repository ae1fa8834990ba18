"""The EVM development chain as a running process: blocks, clock, mempool, WebSocket, start, stop and sudden death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import aiohttp
import msgspec
import pytest
from eth_account import Account

from capstan.devnet.accounts import FUNDED_ACCOUNTS, derive_accounts
from capstan.devnet.deploy import deploy_all
from capstan.devnet.errors import DevnetError
from capstan.devnet.evm import CHAIN_ID, EvmNode
from capstan.devnet.install import NodeProject
from capstan.devnet.models import DevAccount
from capstan.devnet.rpc import NodeRpc
from tests.support.devnet import EvmDevnet, wait_until

ETHER = 10**18


def is_alive(pid: int) -> bool:
    """Whether the process runs. A dead one that nobody has collected yet (a zombie) does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    return not Path("/proc/self").exists()


def accepts_connections(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def signed_transfer(account: DevAccount, nonce: int, to: str, value: int) -> str:
    transaction = {
        "type": 2,
        "chainId": CHAIN_ID,
        "nonce": nonce,
        "to": to,
        "value": value,
        "gas": 21_000,
        "maxFeePerGas": 20 * 10**9,
        "maxPriorityFeePerGas": 10**9,
    }
    return "0x" + bytes(Account.sign_transaction(transaction, account.private_key).raw_transaction).hex()


# --- the chain after its deployment


def test_canonical_contracts_are_at_their_addresses(evm_devnet: EvmDevnet) -> None:
    deployment = evm_devnet.deployment
    assert deployment.entry_points == {
        "0.6": "0x5FF137D4b0FDCD49DcA30c7CF57E578a026d2789",
        "0.7": "0x0000000071727De22E5E9d8BAf0edAc6f37da032",
        "0.8": "0x4337084D9E255Ff0702461CF8895CE9E3b5Ff108",
    }
    assert deployment.factories == {
        "0.6": "0x9406Cc6185a346906296840746125a0E44976454",
        "0.7": "0x91E60e0613810449d098b0b5Ec8b51A0FE8c8985",
        "0.8": "0x13E9ed32155810FDbd067D4522C492D6f68E5944",
    }
    assert deployment.multicall3 == "0xcA11bde05977b3631167028862bE2a173976CA11"
    assert deployment.deployment_proxy == "0x4e59b44847b379578588920cA78FbF26c0B4956C"
    addresses = [
        *deployment.entry_points.values(),
        *deployment.factories.values(),
        *deployment.paymasters.values(),
        *(token.address for token in deployment.tokens),
        *(collection.address for collection in deployment.nfts),
        *(feed.address for feed in deployment.price_feeds),
        deployment.multicall3,
        deployment.deployment_proxy,
    ]
    for address in addresses:
        assert evm_devnet.call("eth_getCode", address, "latest") != "0x", address


def test_the_listed_accounts_are_funded_and_their_keys_fit(evm_devnet: EvmDevnet) -> None:
    deployment = evm_devnet.deployment
    assert len(deployment.accounts) == 20
    assert deployment.accounts[0].address == "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    for account in [*deployment.accounts, *deployment.bundler_executors]:
        assert Account.from_key(account.private_key).address == account.address
        assert int(evm_devnet.call("eth_getBalance", account.address, "0x0"), 16) == 10_000 * ETHER


def test_the_deployment_uses_none_of_the_listed_accounts(evm_devnet: EvmDevnet) -> None:
    first_user_block = evm_devnet.call("eth_getTransactionReceipt", _last_seed_transaction(evm_devnet))["blockNumber"]
    for account in [*evm_devnet.deployment.accounts, *evm_devnet.deployment.bundler_executors]:
        assert evm_devnet.call("eth_getTransactionCount", account.address, first_user_block) == "0x0"


def _last_seed_transaction(evm_devnet: EvmDevnet) -> str:
    collection = evm_devnet.deployment.nfts[1].address
    logs = evm_devnet.call("eth_getLogs", {"address": collection, "fromBlock": "0x0", "toBlock": "latest"})
    return str(logs[3]["transactionHash"])


def test_paymasters_are_deposited_and_staked(evm_devnet: EvmDevnet) -> None:
    deployment = evm_devnet.deployment
    for version, paymaster in deployment.paymasters.items():
        # getDepositInfo(address): deposit, staked, stake, unstakeDelaySec, withdrawTime
        answer = evm_devnet.call(
            "eth_call",
            {"to": deployment.entry_points[version], "data": "0x5287ce12" + paymaster[2:].rjust(64, "0")},
            "latest",
        )
        deposit, staked, stake, delay, _ = (int(answer[2 + 64 * word : 66 + 64 * word], 16) for word in range(5))
        assert 90 * ETHER < deposit <= 100 * ETHER
        assert (staked, stake, delay) == (1, ETHER, 86_400)


def test_deployment_is_json_and_reads_back(evm_devnet: EvmDevnet) -> None:
    encoded = msgspec.json.encode(evm_devnet.deployment)
    assert msgspec.json.decode(encoded, type=type(evm_devnet.deployment)) == evm_devnet.deployment


async def test_a_second_deployment_is_refused(evm_devnet: EvmDevnet, node_project: NodeProject) -> None:
    with pytest.raises(DevnetError, match="already set up"):
        await deploy_all(evm_devnet.url, print, project=node_project)


def test_eip_7702_delegation_works(evm_devnet: EvmDevnet) -> None:
    sender, authority = evm_devnet.deployment.accounts[18], Account.create()
    delegate = evm_devnet.deployment.tokens[0].address
    authorization = authority.sign_authorization({"chainId": CHAIN_ID, "address": delegate, "nonce": 0})
    signed = Account.sign_transaction(
        {
            "type": 4,
            "chainId": CHAIN_ID,
            "nonce": int(evm_devnet.call("eth_getTransactionCount", sender.address, "pending"), 16),
            "to": authority.address,
            "value": 0,
            "gas": 200_000,
            "maxFeePerGas": 20 * 10**9,
            "maxPriorityFeePerGas": 10**9,
            "authorizationList": [authorization],
        },
        sender.private_key,
    )
    evm_devnet.mine_transaction(evm_devnet.call("eth_sendRawTransaction", "0x" + signed.raw_transaction.hex()))
    assert evm_devnet.call("eth_getCode", authority.address, "latest") == "0xef0100" + delegate[2:].lower()


# --- blocks, clock, mempool, WebSocket


def test_blocks_come_every_second_when_idle_and_follow_the_wall_clock(evm_devnet: EvmDevnet) -> None:
    first = evm_devnet.wait_for_next_block()
    wait_until(lambda: evm_devnet.block_number() >= first + 4, 60, "four idle blocks")
    blocks = [evm_devnet.call("eth_getBlockByNumber", hex(first + step), False) for step in range(5)]
    times = [int(block["timestamp"], 16) for block in blocks]
    # A machine that stands still makes gaps wider, never narrower.
    assert times[4] - times[0] >= 3
    assert times[4] <= time.time() + 1


def test_many_blocks_at_once_do_not_move_the_clock_ahead(evm_devnet: EvmDevnet) -> None:
    evm_devnet.mine(20)
    evm_devnet.wait_for_next_block()
    block = evm_devnet.call("eth_getBlockByNumber", "latest", False)
    assert int(block["timestamp"], 16) <= time.time() + 1


async def test_a_transaction_waits_in_the_mempool_for_the_next_block(node_project: NodeProject) -> None:
    sender, receiver = derive_accounts(2)
    node = EvmNode(node_project, block_time=600)
    await node.start()
    try:
        async with NodeRpc(node.url) as rpc:
            raw = signed_transfer(sender, 0, receiver.address, 1)
            transaction_hash = await rpc.call("eth_sendRawTransaction", raw)
            assert (await rpc.call("eth_getTransactionByHash", transaction_hash))["blockNumber"] is None
            assert await rpc.call("eth_getTransactionReceipt", transaction_hash) is None
            pending = await rpc.call("eth_getBlockByNumber", "pending", False)
            assert pending["transactions"] == [transaction_hash]
            await rpc.call("evm_mine")
            assert (await rpc.call("eth_getTransactionReceipt", transaction_hash))["blockNumber"] == "0x1"
    finally:
        await node.stop()


def test_a_transaction_is_mined_without_being_asked_for(evm_devnet: EvmDevnet) -> None:
    sender, receiver = evm_devnet.deployment.accounts[19], evm_devnet.deployment.accounts[18]
    nonce = int(evm_devnet.call("eth_getTransactionCount", sender.address, "latest"), 16)
    transaction_hash = evm_devnet.call("eth_sendRawTransaction", signed_transfer(sender, nonce, receiver.address, 1))
    wait_until(
        lambda: evm_devnet.call("eth_getTransactionReceipt", transaction_hash) is not None,
        10,
        "the block of the transfer",
    )


async def test_websocket_delivers_new_heads(evm_devnet: EvmDevnet) -> None:
    async with (
        asyncio.timeout(20),
        aiohttp.ClientSession() as session,
        session.ws_connect(evm_devnet.websocket_url) as ws,
    ):
        await ws.send_json({"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]})
        subscription = (await ws.receive_json())["result"]
        heads = [(await ws.receive_json())["params"] for _ in range(2)]
    assert {head["subscription"] for head in heads} == {subscription}
    assert int(heads[1]["result"]["number"], 16) == int(heads[0]["result"]["number"], 16) + 1


# --- the process


async def test_start_and_deploy_twice_in_a_row_gives_the_same_deployment(node_project: NodeProject) -> None:
    deployments = []
    for _ in range(2):
        node = EvmNode(node_project)
        await node.start()
        try:
            deployments.append(await deploy_all(node.url, print, project=node_project))
            async with NodeRpc(node.url) as rpc:
                block = await rpc.call("eth_getBlockByNumber", "latest", False)
            assert int(block["timestamp"], 16) <= time.time() + 1
        finally:
            await node.stop()
        assert not node.running
        assert not is_alive(node.pid)
    assert deployments[0] == deployments[1]


async def test_two_nodes_run_side_by_side_with_chains_of_their_own(node_project: NodeProject) -> None:
    nodes = [EvmNode(node_project, block_time=60), EvmNode(node_project, block_time=60)]
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        assert nodes[0].port != nodes[1].port
        async with NodeRpc(nodes[0].url) as first, NodeRpc(nodes[1].url) as second:
            await first.call("evm_mine")
            assert await first.call("eth_blockNumber") == "0x1"
            assert await second.call("eth_blockNumber") == "0x0"
            assert [address.lower() for address in await second.call("eth_accounts")] == [
                account.address.lower() for account in derive_accounts(FUNDED_ACCOUNTS)
            ]
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))


async def test_a_given_port_is_used_and_a_taken_port_is_a_clear_error(node_project: NodeProject) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        node = EvmNode(node_project, port=port)
        with pytest.raises(DevnetError, match=r"(?s)ended before it was ready.*EADDRINUSE"):
            await node.start()
        assert not node.running
    node = EvmNode(node_project, port=port)
    await node.start()
    try:
        assert node.url == f"http://127.0.0.1:{port}"
    finally:
        await node.stop()


async def test_a_start_that_takes_too_long_is_ended_and_reported(node_project: NodeProject) -> None:
    node = EvmNode(node_project, startup_timeout=0.01)
    with pytest.raises(DevnetError, match=r"not ready after 0\.01 seconds"):
        await node.start()
    assert not node.running


async def test_a_missing_package_is_reported_with_the_output_of_the_node(
    node_project: NodeProject, tmp_path: Path
) -> None:
    node = EvmNode(NodeProject(node=node_project.node, directory=tmp_path))
    with pytest.raises(DevnetError, match=r"(?s)ended before it was ready.*Cannot find module 'hardhat'"):
        await node.start()


async def test_a_node_that_ignores_sigterm_is_killed(
    node_project: NodeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capstan.devnet.evm.STOP_TIMEOUT_SECONDS", 0.3)
    node = EvmNode(node_project)
    await node.start()
    # A stopped process cannot act on SIGTERM.
    os.kill(node.pid, signal.SIGSTOP)
    await node.stop()
    assert not is_alive(node.pid)


async def test_the_end_of_the_node_is_noticed(node_project: NodeProject) -> None:
    node = EvmNode(node_project)
    await node.start()
    os.kill(node.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        assert await node.wait_closed() == -signal.SIGKILL
    assert not node.running
    await node.stop()


PARENT = """
    import asyncio, sys
    from pathlib import Path
    from capstan.devnet.evm import EvmNode
    from capstan.devnet.install import NodeProject

    async def main():
        node = EvmNode(NodeProject(node=Path(sys.argv[1]), directory=Path(sys.argv[2])))
        await node.start()
        FORK
        print(node.pid, node.port, flush=True)
        await asyncio.sleep(60)

    asyncio.run(main())
"""

# A forked worker keeps a copy of the pipe to the node open after its parent was killed.
FORK = "import os, time; worker = os.fork(); worker or (time.sleep(20), os._exit(0))"


@pytest.mark.parametrize("extra", ["pass", FORK], ids=["alone", "with a forked worker"])
def test_a_killed_parent_leaves_no_node_behind(node_project: NodeProject, extra: str) -> None:
    code = textwrap.dedent(PARENT).replace("FORK", extra)
    parent = subprocess.Popen(
        [sys.executable, "-c", code, node_project.node, node_project.directory],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        pid, port = (int(word) for word in parent.stdout.readline().split())
        assert is_alive(pid)
        assert accepts_connections(port)
        parent.kill()
        # Its first thread may have ended while others still hold the socket.
        wait_until(lambda: not is_alive(pid) and not accepts_connections(port), 30, "the end of the node")
    finally:
        # The forked worker, and whatever a failure left, are of this session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait(10)
        if parent.stdout is not None:
            parent.stdout.close()


def test_ctrl_c_in_the_terminal_does_not_reach_the_node(evm_devnet: EvmDevnet) -> None:
    assert os.getsid(evm_devnet.node.pid) == evm_devnet.node.pid
    assert os.getpgid(evm_devnet.node.pid) != os.getpgrp()


def test_the_node_listens_on_loopback_only(evm_devnet: EvmDevnet) -> None:
    listening = Path("/proc/net/tcp").read_text().splitlines()[1:]
    port = f"{evm_devnet.node.port:04X}"
    addresses = {line.split()[1] for line in listening if line.split()[3] == "0A"}
    assert f"0100007F:{port}" in addresses
    assert f"00000000:{port}" not in addresses
