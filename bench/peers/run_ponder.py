"""Runs Ponder on a chain and measures how long it takes to fetch the transfers of one token.

Run by `bench/data.py` when it is told where Ponder is installed: a directory in which the files of
`bench/peers/ponder` are and `npm install` was run. Time counts from when its server answers, so that compiling the
project does not, until it says that it is ready.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

_MOST_SECONDS = 1800.0
_POLL_SECONDS = 0.05
_FILES = Path(__file__).parent / "ponder"


async def run_ponder(project: Path, url: str, token: str, last_block: int) -> dict[str, float]:
    """Seconds, processor time, events, calls and peak memory."""
    shutil.copytree(_FILES, project, dirs_exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        process = await asyncio.create_subprocess_exec(
            *("node", "node_modules/ponder/dist/esm/bin/ponder.js", "start", "--schema", "bench", "--port", str(port)),
            cwd=project,
            env={
                **os.environ,
                "BENCH_URL": url,
                "BENCH_TOKEN": token,
                "BENCH_END": str(last_block),
                "BENCH_DIRECTORY": directory,
                "PONDER_TELEMETRY_DISABLED": "1",
            },
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session, asyncio.timeout(_MOST_SECONDS):
                await _wait_for(session, "/health", process)
                began, before = time.perf_counter(), _busy(process.pid)
                await _wait_for(session, "/ready", process)
                seconds, busy = time.perf_counter() - began, _busy(process.pid) - before
                async with session.get("/metrics") as response:
                    metrics = await response.text()
            megabytes = _peak(process.pid)
        finally:
            process.kill()
            await process.wait()
    return {
        "seconds": seconds,
        "busy": busy,
        "events": _sum(metrics, "ponder_indexing_completed_events"),
        "calls": _sum(metrics, "ponder_rpc_request_duration_count"),
        "megabytes": megabytes,
    }


async def _wait_for(session: aiohttp.ClientSession, path: str, process: asyncio.subprocess.Process) -> None:
    while process.returncode is None:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(path) as response:
                if response.status == 200:
                    return
        await asyncio.sleep(_POLL_SECONDS)
    raise RuntimeError("Ponder ended before it was ready; was `npm install` run?")


def _busy(pid: int) -> float:
    """The processor time that a process has used, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak(pid: int) -> float:
    """The most memory a process has had, in megabytes."""
    found = re.search(r"VmHWM:\s+([0-9]+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    return int(found.group(1)) / 1024 if found else 0.0


def _sum(metrics: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}{{[^}}]*}} ([0-9.]+)$", metrics, re.MULTILINE))


if __name__ == "__main__":
    where, node_url, contract, last = sys.argv[1:]
    print(json.dumps(asyncio.run(run_ponder(Path(where), node_url, contract, int(last)))))
