"""Kills a service with webhooks many times, through reorganisations of depth 1 to 32. Not a measure of speed.

Run `python bench/webhook_kills.py [kills] [seed]`; without arguments ten kills. Exits with 1 when an event of the chain
was not told or told under two ids, when one was invented, or when the folded balances are not those of the contract.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# Found by the line above when run as a script.
from capstan.devnet.install import ensure_node_project
from tests.support.devnet import NEVER, running_devnet
from tests.support.webhook_kills import Killing

_KILLS = 10
_SEED = 8
_DEEPEST = 32


def main(kills: int, seed: int) -> int:
    """Kill, settle, compare, print."""
    project = ensure_node_project(print)
    with running_devnet(project, block_time=NEVER) as devnet, tempfile.TemporaryDirectory() as directory:
        killing = Killing(Path(directory), devnet, seed=seed)
        began = time.monotonic()
        killing.begin()
        while killing.kills < kills:
            depth = killing.kills % _DEEPEST + 1
            killing.reorganise(depth)
            print(f"kill {killing.kills}, depth {depth}: {killing.deliveries()} deliveries", flush=True)
        try:
            killing.settle()
        except AssertionError as error:
            print(error)
            return 1
        told, real = killing.standing(), killing.on_chain()
        lost, invented = real - told, told - real
        print(f"{kills} kills in {time.monotonic() - began:.0f} s, seed {seed}: the balances are those of the contract")
        print(f"{len(killing.events())} events in {killing.deliveries()} deliveries; on the chain {len(real)}")
        print(f"lost {sum(lost.values())}, invented or under two ids {sum(invented.values())}")
        killing.close()
        return int(bool(lost or invented))


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    sys.exit(main(*given, *(_KILLS, _SEED)[len(given) :]))
