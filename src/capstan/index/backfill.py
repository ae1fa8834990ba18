"""Runs the history jobs of this process: those that a question asks for, and those that an earlier run left behind.

Called by the service. The table of subjects is the queue: a job that finds no place here, or whose process was killed,
is found again by the regular look for subjects that are not complete and that nobody has claimed. At most so many jobs
run at once. It knows nothing of who asked.
"""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from capstan.index.job import HistoryJob, JobTools, Source
from capstan.index.models import Subject
from capstan.index.subjects import SubjectState
from capstan.storage.errors import StorageError

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 2.0
_FOUND_AT_ONCE = 32


class Backfill:
    """The history jobs of this process."""

    def __init__(self, tools: JobTools, sources: Callable[[], Iterable[Source]], *, most_jobs: int = 8) -> None:
        """`sources` are the networks whose history is fetched here."""
        self._tools = tools
        self._sources = sources
        self._most_jobs = most_jobs
        self._jobs: dict[int, tuple[HistoryJob, asyncio.Task[bool], str]] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Begin to look for work that was left behind."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="transfer index: history")

    def fetch(self, source: Source, state: SubjectState) -> None:
        """Fetch the history of a subject now, if there is a place; otherwise it is found later."""
        if state.id in self._jobs or self._closed or len(self._jobs) >= self._most_jobs or state.seam is None:
            return
        job = HistoryJob(self._tools, source, state)
        task = asyncio.create_task(job.run(), name=f"history of {state.subject} on {source.network}")
        self._jobs[state.id] = (job, task, source.network)
        task.add_done_callback(lambda done: self._finish(state, done))
        self._measure(source.network)

    async def wait(self, subject_id: int, seconds: float) -> None:
        """Wait until the job of a subject has ended, if it runs here, but not for longer than this."""
        entry = self._jobs.get(subject_id)
        if entry is not None:
            await asyncio.wait([entry[1]], timeout=seconds)

    async def close(self) -> None:
        """Stop. What is not fetched yet is fetched by the next process."""
        self._closed = True
        tasks: list[asyncio.Task[bool] | asyncio.Task[None]] = [task for _, task, _ in self._jobs.values()]
        if self._keeper is not None:
            tasks.append(self._keeper)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def look(self) -> None:
        """Take up subjects that are not complete and that nobody fetches."""
        tools = self._tools
        for source in self._sources():
            free = self._most_jobs - len(self._jobs)
            if free <= 0:
                return
            async with tools.database.read() as connection:
                network = await tools.subjects.find_network(connection, source.network)
                found = (
                    []
                    if network is None
                    else await tools.subjects.incomplete(connection, network.id, min(free, _FOUND_AT_ONCE))
                )
            for state in found:
                self.fetch(source, state)
            self._measure(source.network)

    async def _keep(self) -> None:
        while True:
            try:
                await self.look()
            except StorageError as error:
                log.warning("index.look_failed", reason=str(error))
            await asyncio.sleep(_LOOK_SECONDS)

    def _finish(self, state: SubjectState, task: asyncio.Task[bool]) -> None:
        _, _, network = self._jobs.pop(state.id)
        self._measure(network)
        if not task.cancelled() and (error := task.exception()) is not None:
            subject: Subject = state.subject
            log.error("index.backfill_failed", network=network, subject=str(subject), exc_info=error)

    def _measure(self, network: str) -> None:
        jobs = [job for job, _, name in self._jobs.values() if name == network]
        self._tools.metrics.subjects.labels(network).set(len(jobs))
        self._tools.metrics.left.labels(network).set(sum(job.left for job in jobs))
