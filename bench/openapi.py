"""Looks for answers that are not as the API description says, with more examples than the tests. No measure of speed.

Run `python bench/openapi.py [examples]`. Exits with 1 and prints what schemathesis found when there is a fault.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# Found by the line above when run as a script.
from capstan.devnet.install import ensure_node_project
from tests.support.devnet import running_devnet
from tests.support.openapi import described_service, find_faults

_EXAMPLES = 40
_SECONDS = 3600.0


def main(examples: int) -> int:
    """Run it once and say how it went."""
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as directory,
        running_devnet(ensure_node_project(print)) as devnet,
        described_service(Path(directory), devnet) as described,
    ):
        options = ("--warnings", "off")
        done = find_faults(described, Path(directory), *options, examples=examples, seconds=_SECONDS)
    if done.returncode:
        print(done.stdout, done.stderr)
    print(f"{examples} examples for each path in {time.monotonic() - began:.0f} s, exit code {done.returncode}")
    return 1 if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else _EXAMPLES))
