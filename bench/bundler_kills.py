"""Kills a bundling service many times at random instants and counts what was lost. Not a measure of speed.

Run `python bench/bundler_kills.py [kills] [seed]`; without arguments ten kills. Exits with 1 when an accepted
operation was not included exactly once, a bundle failed on the chain, or a nonce was left out.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# Found by the line above when run as a script.
from capstan.devnet.install import ensure_node_project
from tests.support.bundler_kills import Killing
from tests.support.devnet import running_devnet

_KILLS = 10
_SEED = 7562


def main(kills: int, seed: int) -> int:
    """Kill, settle, count, print."""
    with running_devnet(ensure_node_project(print)) as devnet, tempfile.TemporaryDirectory() as directory:
        killing = Killing(Path(directory), devnet, seed=seed)
        began = time.monotonic()
        for number in range(kills):
            killing.kill_once()
            print(f"kill {number + 1}: {len(killing.accepted)} operations accepted so far", flush=True)
        killing.settle()
        counts = killing.inclusions()
        wrong = {each: counts.get(each, 0) for each in killing.accepted if counts.get(each, 0) != 1}
        reverted = killing.reverted()
        gaps = [
            (first, following) for first, following, mined in killing.nonces() if mined != [*range(first, following)]
        ]
        print(f"{kills} kills in {time.monotonic() - began:.0f} s, seed {seed}")
        print(f"accepted {len(killing.accepted)}, not included exactly once {len(wrong)}")
        print(f"bundles that failed on the chain {len(reverted)}, lanes with gaps {len(gaps)}")
        return int(bool(wrong or reverted or gaps or not killing.accepted))


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    sys.exit(main(*given, *(_KILLS, _SEED)[len(given) :]))
