"""The child process: starts, reports why it did not, and never outlives its parent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from capstan.devnet.solana import SolanaNode, SolanaNodeError
from tests.support.solana import start_node, stop_node

SECONDS = 30.0
SOURCE = str(Path(__file__).resolve().parents[4] / "src")


def is_running(pid: int) -> bool:
    """Whether the process exists and is not merely waiting to be reaped by whoever inherited it."""
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not is_running(pid):
            return True
        select.select([], [], [], 0.05)
    return False


async def test_a_node_starts_answers_and_stops() -> None:
    node = SolanaNode()
    async with asyncio.timeout(SECONDS):
        await node.start()
        pid = node.pid
        try:
            assert os.getsid(pid) == pid, "the node must have a session of its own"
            async with aiohttp.ClientSession() as client:
                body = {"jsonrpc": "2.0", "id": 1, "method": "getHealth"}
                async with client.post(node.url, json=body) as reply:
                    assert (await reply.json())["result"] == "ok"
                async with client.ws_connect(node.ws_url) as ws:
                    await ws.send_json({"jsonrpc": "2.0", "id": 1, "method": "slotSubscribe"})
                    assert "result" in await ws.receive_json()
        finally:
            await node.stop()
    assert not is_running(pid)
    with pytest.raises(SolanaNodeError, match="not running"):
        _ = node.url
    await node.stop()


async def test_a_node_that_cannot_start_shows_its_last_output() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        node = SolanaNode(port=port)
        async with asyncio.timeout(SECONDS):
            with pytest.raises(SolanaNodeError) as failure:
                await node.start()
    assert "ended before it was ready" in str(failure.value)
    assert f"cannot listen on 127.0.0.1 port {port}" in str(failure.value)


async def test_a_node_that_is_not_ready_in_time_is_ended() -> None:
    node = SolanaNode(start_seconds=0.001)
    async with asyncio.timeout(SECONDS):
        with pytest.raises(SolanaNodeError, match="not ready within"):
            await node.start()
    with pytest.raises(SolanaNodeError, match="not running"):
        _ = node.pid


async def test_a_node_starts_once_at_a_time() -> None:
    async with asyncio.timeout(SECONDS), SolanaNode() as node:
        with pytest.raises(SolanaNodeError, match="already running"):
            await node.start()


async def test_whoever_waits_for_a_node_learns_that_it_ended() -> None:
    async with asyncio.timeout(SECONDS), SolanaNode() as node:
        waiting = asyncio.create_task(node.wait_closed())
        os.kill(node.pid, signal.SIGKILL)
        assert await waiting == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_node_cleanly(number: signal.Signals) -> None:
    process, _ = start_node()
    try:
        process.send_signal(number)
        assert process.wait(SECONDS) == 0
    finally:
        stop_node(process)


def test_the_node_ends_when_its_input_closes_and_writes_one_line() -> None:
    process, _ = start_node()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.close()
        assert process.wait(SECONDS) == 0
        assert process.stdout.read() == b""
    finally:
        stop_node(process)


def test_the_node_dies_with_a_parent_that_is_killed() -> None:
    script = (
        "import asyncio, json\n"
        "from capstan.devnet.solana import SolanaNode\n"
        "async def main():\n"
        "    node = SolanaNode()\n"
        "    await node.start()\n"
        "    print(json.dumps(node.pid), flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": SOURCE},
    )
    assert parent.stdout is not None
    node_pid = None
    try:
        readable, _, _ = select.select([parent.stdout], [], [], SECONDS)
        assert readable, "the parent did not report its node in time"
        node_pid = json.loads(parent.stdout.readline())
        assert is_running(node_pid)
        parent.kill()
        parent.wait(SECONDS)
        assert gone_within(node_pid, SECONDS), "the node outlived its parent"
    finally:
        parent.stdout.close()
        if parent.poll() is None:
            parent.kill()
            parent.wait(SECONDS)
        if node_pid is not None and is_running(node_pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(node_pid, signal.SIGKILL)


def test_the_child_loads_no_other_part_of_capstan() -> None:
    """The child starts with every `capstan dev`; the service's own modules would cost it time and memory."""
    script = (
        "import sys, capstan.devnet.solana.__main__\n"
        "heavy = ('litestar', 'sqlalchemy', 'structlog', 'eth_account', 'uvicorn')\n"
        "names = [n for n in sys.modules if n.startswith('capstan.') and not n.startswith('capstan.devnet')]\n"
        "print([*names, *(n for n in heavy if n in sys.modules)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
        env=os.environ | {"PYTHONPATH": SOURCE},
    )
    assert done.stdout.strip() == "[]"
