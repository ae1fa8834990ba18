"""A process that sponsors and settles until it is killed: `python -m tests.support.gas_child URL POLICY SEED`.

It writes one line for each step that is committed, so that the test knows what must be there after the kill.
"""

import asyncio
import random
import sys

from capstan.chain.follower.models import Delta
from capstan.gas.sponsor.judging import Refused
from capstan.gas.sponsor.ledger import Ledger
from capstan.gas.sponsor.settlement import SettlementConsumer
from capstan.storage.database import Database, DatabaseOptions
from tests.support.gas_ledger import NETWORK, NOON, applied, draft, handled, reverted


async def main(url: str, policy: str, seed: int) -> None:
    """Sponsor, land, expire and take back, at random, for ever."""
    dice = random.Random(seed)
    database = Database(DatabaseOptions(url=url))
    ledger, consumer = Ledger(database), SettlementConsumer(NETWORK, release_seconds=0)
    number, waiting = seed * 1_000_000, []
    while True:
        given = [
            draft(policy, cost=dice.randrange(1, 10**9), nonce=dice.randrange(2)) for _ in range(dice.randrange(1, 6))
        ]
        results = await asyncio.gather(*(ledger.reserve(each) for each in given), return_exceptions=True)
        for each, result in zip(given, results, strict=True):
            if result is None:
                waiting.append(each)
                print("granted", each.id, flush=True)
            elif not isinstance(result, Refused):
                raise result
        landing = [waiting.pop(dice.randrange(len(waiting))) for _ in range(dice.randrange(len(waiting) + 1))]
        number += 1
        late = int(NOON.timestamp()) + dice.choice((0, 0, 0, 601))
        deltas: list[Delta] = [
            applied(number, *(handled(each, dice.randrange(1, 3 * 10**11)) for each in landing), timestamp=late)
        ]
        if dice.random() < 0.3:
            deltas.append(reverted(number))
            waiting += landing
        for delta in deltas:
            async with database.write() as connection:
                await consumer.apply(connection, delta)
        print("block", number, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
