"""What a sponsorship costs.

The whole engine (reading, rules, price, signature, reservation in a real SQLite file) for senders that
are known, so that no node is asked; the HTTP server is not in it. The figure is CPU time, of all threads, per
sponsorship. The goal is 500 in a second of one core. The baseline of the same run is the signature alone. Run it with
`make bench`, or alone: `python bench/gas.py`.
"""

import asyncio
import tempfile
import time
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import msgspec

from capstan.access.models import ALL_SCOPES, NO_OVERRIDES, Account, Caller
from capstan.access.store import AccessStore
from capstan.catalogue.networks import builtin_networks
from capstan.chain.calls.models import BlockRef
from capstan.core.clock import SystemClock, utc
from capstan.gas.policies.models import Policy, Spending
from capstan.gas.policies.service import PolicyService
from capstan.gas.policies.store import PolicyStore
from capstan.gas.sponsor.ledger import Ledger, imbalance
from capstan.gas.sponsor.metrics import SponsorMetrics
from capstan.gas.sponsor.service import Options, Parts, SponsorService
from capstan.gas.sponsor.signer import PaymasterSigner
from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from capstan.storage.migrate import upgrade

SPONSORSHIPS = 2_000
AT_ONCE = 64
GWEI = 10**9


class KnownChain:
    """A chain of which everything is known already."""

    async def head(self, _network: Any) -> BlockRef:
        return BlockRef(1, "0x" + "00" * 32, int(time.time()))

    async def is_deployed(self, _network: Any, _sender: bytes) -> bool:
        return True


class KnownPrice(msgspec.Struct, frozen=True):
    usd: Decimal = Decimal(2_500)

    async def native(self, _network: Any, _block: Any) -> "KnownPrice":
        return self


class NoHooks:
    async def ask(self, _policy: Any, _question: Any) -> None:
        return None


def operation(number: int) -> dict[str, str]:
    return {
        "sender": "0x" + number.to_bytes(20, "big").hex(),
        "nonce": hex(number),
        "callData": "0xb61d27f6" + "11" * 164,
        "callGasLimit": hex(100_000),
        "verificationGasLimit": hex(100_000),
        "preVerificationGas": hex(50_000),
        "maxFeePerGas": hex(20 * GWEI),
        "maxPriorityFeePerGas": hex(GWEI),
    }


async def add_policy(database: Database, rules: dict[str, Any], network: str, now: datetime) -> Policy:
    account = Account("acc_bench", "bench", "enterprise", NO_OVERRIDES, "active", now)
    await AccessStore(database).add_account(account)
    policy = Policy(
        id="gp_bench",
        account_id=account.id,
        name="bench",
        chain="ethereum",
        network=network,
        rules=msgspec.json.encode(rules).decode(),
        hook=None,
        status="active",
        all_time=Spending(),
        today=Spending(),
        from_block=0,
        created_at=now,
        updated_at=now,
    )
    await PolicyStore(database).add(policy, at_most=0)
    return policy


async def sponsoring() -> None:
    facts = msgspec.structs.replace(
        next(each for each in builtin_networks() if each.name == "ethereum/sepolia"),
        paymasters={"0.8": "0x" + "77" * 20},
    )
    with tempfile.TemporaryDirectory() as directory:
        database = Database(DatabaseOptions(url=sqlite_url(Path(directory) / "bench.db")))
        await upgrade(database)
        clock = SystemClock()
        rules = {"max_gas_usd": "100", "max_total_usd": "900000000", "max_per_user_per_day": 5}
        policy = await add_policy(database, rules, facts.name, utc(clock))
        policies = PolicyService(PolicyStore(database), clock, cast("Any", None))
        ledger, signer = Ledger(database), PaymasterSigner(b"\x11" * 32)
        parts = Parts(
            policies=policies,
            ledger=ledger,
            chain=cast("Any", KnownChain()),
            prices=KnownPrice(),
            estimator=cast("Any", None),
            hooks=cast("Any", NoHooks()),
            metrics=SponsorMetrics(),
            resolve=lambda _caller, _chain, _network: (cast("Any", None), facts),
        )
        service = SponsorService(parts, signer, clock, Options(600))
        caller = Caller(policy.account_id, "key", "test", "enterprise", NO_OVERRIDES, ALL_SCOPES)

        async def one(number: int) -> None:
            case = await service.open_case(caller, policy.id, operation(number), chain="ethereum")
            await service.sponsor(case)

        began = time.process_time()
        for number in range(SPONSORSHIPS):
            signer.sign(number.to_bytes(32, "big"))
        signing = (time.process_time() - began) / SPONSORSHIPS * 1e3
        waits = []
        for number in range(200):
            begin = time.perf_counter()
            await one(number)
            waits.append(time.perf_counter() - begin)
        began = time.process_time()
        for first in range(1_000, 1_000 + SPONSORSHIPS, AT_ONCE):
            await asyncio.gather(*(one(number) for number in range(first, first + AT_ONCE)))
        rounds = -(-SPONSORSHIPS // AT_ONCE) * AT_ONCE
        spent = (time.process_time() - began) / rounds * 1e3
        assert await imbalance(database) == []
        await ledger.close()
        await database.close()
    print(f"signature alone        {signing:7.3f} ms CPU")
    print(f"sponsorship, {AT_ONCE} at once {spent:7.3f} ms CPU: {1e3 / spent:6.0f} in a second of one core (goal 500)")
    print(f"sponsorship alone      {sorted(waits)[len(waits) // 2] * 1e3:7.3f} ms p50 on the clock (goal below 15)")


if __name__ == "__main__":
    asyncio.run(sponsoring())
