"""A running Solana development node for the tests that need one: one process for the whole test session.

The node is started the way `capstan dev` does it, as a child whose standard input is held open, so that it ends with
the test run however that ends.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

START_SECONDS = 30.0
STOP_SECONDS = 10.0
SLOT_MILLISECONDS = 200
"""Twice as quick as the real chain, so that waiting for finality does not dominate the tests."""


def start_node(*arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a node process and waits for its port. The caller ends it with `stop_node`."""
    source = str(Path(__file__).resolve().parents[2] / "src")
    process = subprocess.Popen(
        [sys.executable, "-m", "capstan.devnet.solana", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": source},
    )
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    line = process.stdout.readline() if readable else b""
    if not line:
        stop_node(process)
        raise RuntimeError(f"the Solana node was not ready within {START_SECONDS:g} s; see its errors above")
    return process, int(json.loads(line)["port"])


def stop_node(process: subprocess.Popen[bytes]) -> int:
    """Closes the node's input, which ends it; by force if that does not help. Gives its exit code."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        return process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(STOP_SECONDS)
    finally:
        process.stdout.close()


def websocket_url(url: str) -> str:
    """Where a Solana client looks for subscriptions: the port above the HTTP one."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    return f"ws://{host}:{int(port) + 1}"


@pytest.fixture(scope="session")
def solana_devnet() -> Iterator[str]:
    """The URL of a running node. Its chain is shared by all tests: they bring their own keys."""
    process, port = start_node("--slot-milliseconds", str(SLOT_MILLISECONDS))
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        stop_node(process)
