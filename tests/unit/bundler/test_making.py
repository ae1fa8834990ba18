"""An operation whose nonce is still to come waits for the one before it, for a while, and is not dropped."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from capstan.bundler.choosing import BundleLimits, Situation
from capstan.bundler.entries import Entry
from capstan.bundler.making import BundleMaker, Failed
from capstan.bundler.refusals import REJECTED_BY_ACCOUNT, Refusal
from capstan.bundler.reputation import ReputationBook
from capstan.bundler.validating import Validated
from capstan.userops.models import UserOperation
from tests.unit.bundler.test_choosing_limits import ENTRY_POINT, entry

SENDER = 9


class Pool(list[Entry]):
    """Operations, and the rules that the maker asks for."""

    reputation = ReputationBook()

    def mempool(self, _entry_point: bytes) -> "Pool":
        return self


class Chain:
    """A chain on which the entry point expects one nonce, and where every bundle passes."""

    def __init__(self, expected: int) -> None:
        self.expected = expected

    async def next_nonce(self, _entry_point: bytes, _sender: bytes, _key: int) -> int:
        return self.expected

    async def run_bundle(self, *_given: object, **_named: object) -> None:
        return None


class Validator:
    """Knows an older nonce than the chain, as a node that is behind does."""

    def __init__(self, known: int) -> None:
        self.known = known

    async def validate(self, operation: UserOperation, *, earlier: Validated, queued: bool = False) -> Validated:
        assert not queued
        if operation.nonce != self.known:
            raise Refusal(REJECTED_BY_ACCOUNT, "AA25 invalid account nonce")
        return earlier


class Maker(BundleMaker):
    """Remembers what it drops."""

    dropped: list[str]

    async def drop(self, _entry_point: Any, failed: Any, _leases: Any, _lease: Any) -> None:
        self.dropped = [each.reason for each in cast("Sequence[Failed]", failed)]
        for each in failed:
            cast("Any", self)._pool.remove(each.entry)

    async def at(self, now: int) -> list[Entry]:
        given: Any = {"sender": b"", "beneficiary": b"", "leases": None, "lease": None}
        return await self.make(ENTRY_POINT, Situation(base_fee=10, now=now), **given)


def maker(validator: Validator, expected: int, *entries: Entry) -> Maker:
    pool: Any = Pool(entries)
    chain: Any = Chain(expected)
    validators: Any = {ENTRY_POINT.address: validator}
    made = Maker(pool, chain, validators, BundleLimits(gas=10**9))
    made.dropped = []
    return made


def traced(number: int, nonce: int) -> Entry:
    return entry(number, sender=SENDER, nonce=nonce, code_hashes={b"\1" * 20: bytes(32)})


@pytest.mark.asyncio
@pytest.mark.parametrize("expected", [4, 5])
async def test_an_early_operation_waits_and_goes_when_its_nonce_comes(expected: int) -> None:
    early, other = traced(1, 5), entry(2)
    validator = Validator(4)
    made = maker(validator, expected, early, other)
    assert await made.at(1000) == [other]
    assert await made.at(1030) == [other]
    validator.known = 5
    # Not asked about again at the same block.
    assert await made.at(1030) == [other]
    assert await made.at(1031) == [early, other]
    assert made.dropped == []


@pytest.mark.asyncio
async def test_an_early_operation_does_not_wait_for_ever() -> None:
    made = maker(Validator(4), 4, traced(1, 5))
    assert await made.at(1000) == []
    assert await made.at(1060) == []
    assert made.dropped == []
    assert await made.at(1061) == []
    assert made.dropped == ["AA25 invalid account nonce"]


@pytest.mark.asyncio
async def test_an_operation_whose_nonce_is_used_is_dropped_at_once() -> None:
    made = maker(Validator(6), 6, traced(1, 5))
    assert await made.at(1000) == []
    assert made.dropped == ["AA25 invalid account nonce"]


@pytest.mark.asyncio
async def test_of_one_lane_only_the_first_is_tried() -> None:
    made = maker(Validator(4), 4, traced(1, 5), traced(2, 4))
    assert [each.operation.nonce for each in await made.at(1000)] == [4]
