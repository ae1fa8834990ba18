"""The program of a worker process: reads jobs from its standard input, writes reports to its standard output.

Started by `workers`. It ends when its input does, so it never outlives the service, and ends itself when a job takes
too long. It holds no secrets, makes no connections and writes no files.
"""

import signal
import sys
from typing import BinaryIO

import msgspec

from capstan.bundler.validation.evm.curve import provide_coincurve
from capstan.bundler.validation.evm.machine import Machine, load
from capstan.bundler.validation.evm.messages import LENGTH_BYTES, Job, Report
from capstan.bundler.validation.trace import TooDeep, TooSlow

# Calls may nest as deep as `DEEPEST_CALL`, and each takes several calls of Python's.
_RECURSION_LIMIT = 10_000


class Worker:
    """Machines by fork, and the code that was received so far."""

    def __init__(self) -> None:
        self._machines: dict[tuple[str, bool], Machine] = {}
        self._codes: dict[bytes, bytes] = {}

    def run(self, job: Job) -> Report:
        """Run one job."""
        self._codes.update(job.codes)
        key = (job.fork, job.p256)
        machine = self._machines.get(key)
        if machine is None:
            machine = self._machines[key] = Machine(job.fork, p256=job.p256)
        trace, missing = machine.run(job, self._codes)
        return Report(trace=trace, missing=missing, steps=machine.steps)


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Answer jobs until there are no more."""
    worker = Worker()
    decoder, encoder = msgspec.msgpack.Decoder(Job), msgspec.msgpack.Encoder()
    while len(head := source.read(LENGTH_BYTES)) == LENGTH_BYTES:
        job = decoder.decode(source.read(int.from_bytes(head, "big")))
        # The signal ends the process: nobody waits for this answer any more, and the loop cannot be left otherwise.
        signal.setitimer(signal.ITIMER_REAL, job.seconds)
        try:
            report = worker.run(job)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            report = Report(fault=f"{type(error).__name__}: {error}")
        except TooDeep:
            report = Report(too_deep=True)
        except TooSlow:
            report = Report(too_slow=True)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        body = encoder.encode(report)
        target.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)
        target.flush()


def main() -> None:
    """The process."""
    # Ctrl-C is the service's to handle: it goes to the whole group of processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setrecursionlimit(_RECURSION_LIMIT)
    provide_coincurve()
    load()
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
