"""Worker processes: bounded in number and time, replaced when they are stuck, gone when the pool is."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable

import pytest

from capstan.bundler.validation.evm.messages import AccountState, Job
from capstan.bundler.validation.trace import DEEPEST_CALL
from capstan.bundler.validation.workers import JobTimeout, WorkerLimits, Workers
from capstan.core.errors import Unavailable
from capstan.core.hexes import keccak256
from tests.support.bytecode import assemble, calling

_CALLER, _TARGET, _OTHER = b"\x11" * 20, b"\xaa" * 20, b"\xbb" * 20
_IDLE = assemble("STOP")
_ENDLESS = assemble("JUMPDEST PUSH0 JUMP")


def _job(code: bytes, *, other: bytes = b"", gas: int = 100_000, seconds: float = 30.0) -> Callable[[set[bytes]], Job]:
    """Calls a contract with this code; `other` is that of a second one."""

    def make(has: set[bytes]) -> Job:
        known = {keccak256(each): each for each in (code, other, b"")}
        accounts = {
            _TARGET: AccountState(bytes(32), 1, keccak256(code)),
            _OTHER: AccountState(bytes(32), 1, keccak256(other)),
            _CALLER: AccountState(bytes(32), 0, keccak256(b"")),
        }
        codes = {each: text for each, text in known.items() if each not in has}
        return Job(
            fork="osaka",
            chain_id=1,
            block_number=1,
            timestamp=1,
            caller=_CALLER,
            entry_point=_TARGET,
            data=b"",
            gas=gas,
            accounts=accounts,
            codes=codes,
            seconds=seconds,
        )

    return make


def _stuck() -> Callable[[set[bytes]], Job]:
    return _job(_ENDLESS, gas=10**15, seconds=1.0)


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    pool = Workers(WorkerLimits(processes=1, waiting=1, job_seconds=1.0))
    yield pool
    await pool.close()


async def test_a_process_serves_many_jobs_and_is_given_code_once(workers: Workers) -> None:
    given: list[int] = []

    def make(has: set[bytes]) -> Job:
        job = _job(_IDLE)(has)
        given.append(len(job.codes))
        return job

    for _ in range(3):
        report = await workers.run(make)
        assert report.trace is not None
        assert report.trace.root.failed is False
    assert given == [2, 0, 0]
    assert workers.killed == 0


async def test_a_process_that_is_stuck_is_ended_and_replaced(workers: Workers) -> None:
    await workers.run(_job(_IDLE))
    (before,) = workers.idle
    with pytest.raises(JobTimeout):
        await workers.run(_stuck())
    assert workers.idle == []
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    assert (await workers.run(_job(_IDLE))).trace is not None
    assert (workers.killed, before in workers.idle) == (1, False)


async def test_a_job_whose_caller_has_gone_does_not_answer_the_next(workers: Workers) -> None:
    await workers.run(_job(_IDLE))
    task = asyncio.create_task(workers.run(_job(_ENDLESS, gas=10**15)))
    while workers.idle:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    report = await workers.run(_job(_IDLE))
    assert report.trace is not None
    assert report.steps == 1


async def test_only_so_many_jobs_wait(workers: Workers) -> None:
    running = asyncio.create_task(workers.run(_stuck()))
    waiting = asyncio.create_task(workers.run(_job(_IDLE)))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await workers.run(_job(_IDLE))
    with pytest.raises(JobTimeout):
        await running
    assert (await waiting).trace is not None


async def test_one_process_is_started_ahead_and_takes_the_first_job(workers: Workers) -> None:
    await workers.warm()
    await workers.warm()
    (process,) = workers.idle
    assert (await workers.run(_job(_IDLE))).trace is not None
    assert workers.idle == [process]
    await workers.close()
    await workers.warm()
    assert workers.idle == []


async def test_closing_ends_the_processes() -> None:
    pool = Workers(WorkerLimits(processes=2))
    await asyncio.gather(pool.run(_job(_IDLE)), pool.run(_job(_IDLE)))
    processes = pool.idle
    await pool.close()
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    with pytest.raises(Unavailable):
        await pool.run(_job(_IDLE))


async def test_calls_that_nest_too_deeply_are_not_run(workers: Workers) -> None:
    # Calls itself with all the gas there is, until it may go no deeper.
    nested = assemble("PUSH0 PUSH0 PUSH0 PUSH0 PUSH0 ADDRESS GAS CALL STOP")
    first = assemble(calling("0x" + _OTHER.hex()))
    pool = Workers(WorkerLimits(processes=1, job_seconds=120))
    try:
        deep = await pool.run(_job(first, other=nested, gas=10**12, seconds=120))
        # The gas runs out long before.
        shallow = await pool.run(_job(first, other=nested, gas=10**5, seconds=120))
    finally:
        await pool.close()
    assert (deep.too_deep, deep.trace) == (True, None)
    assert shallow.trace is not None
    assert 10 < len(list(shallow.trace.root.walk())) < DEEPEST_CALL


async def test_a_job_that_cannot_end_in_its_time_is_given_up_at_once(workers: Workers) -> None:
    # BLAKE2F with a hundred thousand rounds, which are cheap in gas and slow in Python.
    blake = assemble("100000 224 SHL PUSH0 MSTORE 1 212 MSTORE8 PUSH0 PUSH0 213 PUSH0 PUSH0 9 GAS CALL POP")
    report = await workers.run(_job(blake, gas=1_000_000))
    assert (report.too_slow, report.trace) == (True, None)
    # The process lives on; and rounds that the gas does not pay for take no time.
    assert workers.killed == 0
    unpaid = await workers.run(_job(blake, gas=50_000))
    assert not unpaid.too_slow
    assert unpaid.steps > report.steps
