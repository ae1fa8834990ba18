"""Who answers for an operation that fails after it was accepted, and what that does to reputations (ERC-7562).

Called when a bundle is made. An operation fails alone, in its second validation, or it makes the whole bundle fail,
which only a staked entity or an unstaked paymaster can bring about on purpose. Pure, but for the book it writes to.
"""

from capstan.bundler.models import Entity, PoolOperation, Role
from capstan.bundler.reputation import ReputationBook
from capstan.bundler.validating import Validated

# EREP-070: a staked entity may use so many percent less gas in the second validation, and no more.
_LESS_GAS_PERCENT = 10


def changed_context(earlier: Validated, later: Validated) -> str:
    """What is wrong with the paymaster's context in the second validation; empty when it is as long as in the first.

    EREP-055: the length decides what postOp costs.
    """
    if earlier.context_bytes == later.context_bytes:
        return ""
    return f"paymaster returned a context of {later.context_bytes} bytes, and {earlier.context_bytes} before (EREP-055)"


def saving_entities(earlier: Validated, later: Validated) -> list[Entity]:
    """The staked entities that use much less gas in the second validation than in the first (EREP-070)."""
    return [
        entity
        for entity in (later.sender, later.factory, later.paymaster)
        if entity is not None
        and entity.staked
        and later.gas.get(entity.role, 0) * 100 < earlier.gas.get(entity.role, 0) * (100 - _LESS_GAS_PERCENT)
    ]


def accountable(failed: PoolOperation, role: Role) -> Entity:
    """The entity that answers for a failure in the part of `role`.

    EREP-020: a staked factory answers for the accounts it creates. EREP-030: a staked account answers for its paymaster
    and its aggregator.
    """
    if role == "factory" and failed.factory is not None:
        return failed.factory
    if role == "account" and failed.factory is not None and failed.factory.staked:
        return failed.factory
    if role in ("account", "factory") or failed.sender.staked:
        return failed.sender
    other = failed.paymaster if role == "paymaster" else failed.aggregator
    return failed.sender if other is None else other


def settle_second_validation(book: ReputationBook, failed: PoolOperation, role: Role) -> None:
    """The operation failed its second validation, in the part of `role`, and is dropped.

    EREP-015, EREP-016: a paymaster or aggregator is not to be held back for what factory or account did, so the
    operation no longer counts as seen for it.
    """
    if accountable(failed, role).role not in ("account", "factory"):
        return
    for entity in (failed.paymaster, failed.aggregator):
        if entity is not None:
            book.take_back_seen(entity.address)


def settle_failed_bundle(book: ReputationBook, failed: PoolOperation, role: Role) -> Entity:
    """The operation made a bundle fail although its second validation passed. Returns who is banned for it (GREP-040).

    Nothing is held against a sender without stake: the operation is dropped, and anyone can make another sender.
    """
    guilty = accountable(failed, role)
    if guilty.role != "account" or guilty.staked:
        book.condemn(guilty.address)
    for entity in (failed.paymaster, failed.aggregator):
        if entity is not None and entity is not guilty and guilty.role in ("account", "factory"):
            book.take_back_seen(entity.address)
    return guilty
