"""Methods about the node and its clock: health, version, slots, epochs, fees in general, supply."""

from __future__ import annotations

from typing import Any

from capstan.devnet.solana import params as p
from capstan.devnet.solana.errors import invalid_params, invalid_request, no_snapshot
from capstan.devnet.solana.ledger import Ledger
from capstan.devnet.solana.methods.common import CORE_VERSION, with_context
from capstan.devnet.solana.records import Block
from capstan.devnet.solana.settings import MAX_PROCESSING_AGE

MAX_DATA_LENGTH = 10 * 1024 * 1024
MAX_ACCOUNT_LOCKS = 128
MAX_SLOT_LEADERS = 5_000


def get_health(_: Ledger, params: Any) -> str:
    p.read(params, required=0)
    return "ok"


def get_version(ledger: Ledger, params: Any) -> dict[str, Any]:
    p.read(params, required=0)
    return {"solana-core": CORE_VERSION, "feature-set": ledger.feature_set}


def get_identity(ledger: Ledger, params: Any) -> dict[str, Any]:
    p.read(params, required=0)
    return {"identity": str(ledger.identity)}


def get_genesis_hash(ledger: Ledger, params: Any) -> str:
    p.read(params, required=0)
    return str(ledger.genesis_hash)


def get_slot(ledger: Ledger, params: Any) -> int:
    (config,) = p.read(params, p.ContextConfig, required=0)
    return p.bank_for(ledger, config).slot


def get_block_height(ledger: Ledger, params: Any) -> int:
    (config,) = p.read(params, p.ContextConfig, required=0)
    return p.bank_for(ledger, config).height


def get_slot_leader(ledger: Ledger, params: Any) -> str:
    (config,) = p.read(params, p.ContextConfig, required=0)
    p.bank_for(ledger, config)
    return str(ledger.identity)


def get_slot_leaders(ledger: Ledger, params: Any) -> list[str]:
    _, limit = p.read(params, p.U64, p.U64, required=2)
    if limit > MAX_SLOT_LEADERS:
        raise invalid_params(f"Invalid limit; max {MAX_SLOT_LEADERS}")
    return [str(ledger.identity)] * limit


def get_transaction_count(ledger: Ledger, params: Any) -> int:
    (config,) = p.read(params, p.ContextConfig, required=0)
    return p.bank_for(ledger, config).transaction_count


def get_epoch_info(ledger: Ledger, params: Any) -> dict[str, Any]:
    (config,) = p.read(params, p.ContextConfig, required=0)
    bank = p.bank_for(ledger, config)
    epoch, index = ledger.epoch_schedule.get_epoch_and_slot_index(bank.slot)
    return {
        "epoch": epoch,
        "slotIndex": index,
        "slotsInEpoch": ledger.epoch_schedule.get_slots_in_epoch(epoch),
        "absoluteSlot": bank.slot,
        "blockHeight": bank.height,
        "transactionCount": bank.transaction_count,
    }


def get_epoch_schedule(ledger: Ledger, params: Any) -> dict[str, Any]:
    p.read(params, required=0)
    schedule = ledger.epoch_schedule
    return {
        "slotsPerEpoch": schedule.slots_per_epoch,
        "leaderScheduleSlotOffset": schedule.leader_schedule_slot_offset,
        "warmup": schedule.warmup,
        "firstNormalEpoch": schedule.first_normal_epoch,
        "firstNormalSlot": schedule.first_normal_slot,
    }


def get_minimum_balance_for_rent_exemption(ledger: Ledger, params: Any) -> int:
    length, _ = p.read(params, p.U64, p.CommitmentConfig, required=1)
    if length > MAX_DATA_LENGTH:
        raise invalid_request()
    return ledger.rent_exempt_minimum(length)


def get_supply(ledger: Ledger, params: Any) -> dict[str, Any]:
    """Nothing is locked away at genesis here, so the whole supply circulates."""
    (config,) = p.read(params, p.SupplyConfig, required=0)
    bank = p.bank_for(ledger, config)
    supply = {
        "total": bank.lamports,
        "circulating": bank.lamports,
        "nonCirculating": 0,
        "nonCirculatingAccounts": [],
    }
    return with_context(bank.slot, supply)


def get_recent_prioritization_fees(ledger: Ledger, params: Any) -> list[dict[str, int]]:
    (addresses,) = p.read(params, list[str], required=0)
    accounts = set(p.pubkeys(addresses or [], MAX_ACCOUNT_LOCKS))
    newest = ledger.slot - 1
    slots = range(max(ledger.store.first_slot, newest - MAX_PROCESSING_AGE + 1), newest + 1)
    blocks = [block for slot in slots if (block := ledger.store.block(slot)) is not None]
    return [{"slot": block.slot, "prioritizationFee": _lowest_fee(block, accounts)} for block in blocks]


def _lowest_fee(block: Block, accounts: set[Any]) -> int:
    """The lowest price that landed in the block, or on the dearest of the accounts asked about."""
    lowest = min((record.unit_price for record in block.transactions), default=0)
    for account in accounts:
        prices = [record.unit_price for record in block.transactions if account in record.resolved.writable_keys()]
        lowest = max(lowest, min(prices, default=0))
    return lowest


def get_highest_snapshot_slot(_: Ledger, params: Any) -> Any:
    p.read(params, required=0)
    raise no_snapshot()
