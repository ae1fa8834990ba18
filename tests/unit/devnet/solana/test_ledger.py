"""The chain itself: blockhash age, repeats, commitments, bounds, nonces, lookup tables, deployed programs."""

from __future__ import annotations

import struct

import pytest
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import (
    AdvanceNonceAccountParams,
    CreateAccountParams,
    InitializeNonceAccountParams,
    TransferParams,
    advance_nonce_account,
    create_account,
    initialize_nonce_account,
    transfer,
)
from solders.sysvar import CLOCK, RENT
from solders.transaction import VersionedTransaction

from capstan.devnet.solana.ledger import BlockFull
from capstan.devnet.solana.programs import SYSTEM, UPGRADEABLE_LOADER
from capstan.devnet.solana.records import Commitment
from tests.unit.devnet.solana.chain import MEMO, SOL, Chain, lookup_table, versioned_transfer


def test_a_blockhash_is_accepted_until_it_is_150_blocks_old() -> None:
    chain = Chain()
    blockhash = chain.blockhash()
    to = Pubkey.new_unique()
    chain.advance(150)
    assert chain.ledger.execute(chain.transfer(to, SOL, blockhash=blockhash)).error is None
    chain.advance(1)
    outcome = chain.ledger.execute(chain.transfer(to, 2 * SOL, blockhash=blockhash))
    assert outcome.error == "BlockhashNotFound"
    assert not outcome.included
    assert chain.balance(to, Commitment.PROCESSED) == SOL


def test_a_made_up_blockhash_is_not_accepted() -> None:
    chain = Chain()
    outcome = chain.ledger.execute(chain.transfer(Pubkey.new_unique(), blockhash=Hash.new_unique()))
    assert outcome.error == "BlockhashNotFound"


def test_every_block_has_its_own_hash_and_names_its_parent() -> None:
    chain = Chain()
    chain.advance(20)
    blocks = [chain.ledger.store.block(slot) for slot in range(20)]
    hashes = [block.blockhash for block in blocks if block is not None]
    assert len(set(hashes)) == 20
    assert [block.previous_blockhash for block in blocks[1:] if block is not None] == hashes[:-1]


def test_two_chains_share_no_blockhash() -> None:
    first, second = Chain(), Chain()
    assert first.blockhash() != second.blockhash()
    assert first.ledger.genesis_hash != second.ledger.genesis_hash


def test_a_transaction_runs_once_while_its_blockhash_lasts() -> None:
    chain = Chain()
    to = Pubkey.new_unique()
    transaction = chain.transfer(to)
    assert chain.ledger.execute(transaction).error is None
    assert chain.ledger.execute(transaction).error == "AlreadyProcessed"
    chain.advance(100)
    assert chain.ledger.execute(transaction).error == "AlreadyProcessed"
    chain.advance(51)
    assert chain.ledger.execute(transaction).error == "BlockhashNotFound"
    assert chain.balance(to, Commitment.PROCESSED) == SOL


def test_each_commitment_sees_its_own_state() -> None:
    chain = Chain(finality_slots=2)
    to = Pubkey.new_unique()
    chain.advance(5)
    chain.ledger.execute(chain.transfer(to))

    def balances() -> tuple[int, ...]:
        return tuple(chain.balance(to, commitment) // SOL for commitment in Commitment)

    assert balances() == (1, 0, 0)
    chain.advance()
    assert balances() == (1, 1, 0)
    chain.ledger.execute(chain.transfer(to, 2 * SOL))
    assert balances() == (3, 1, 0)
    chain.advance()
    assert balances() == (3, 3, 0)
    chain.advance()
    assert balances() == (3, 3, 1)
    chain.advance()
    assert balances() == (3, 3, 3)


def test_program_accounts_are_those_of_the_slot_asked_for() -> None:
    chain = Chain()
    program, created = Pubkey.new_unique(), Keypair()
    lamports = chain.ledger.rent_exempt_minimum(8)
    chain.run(
        [
            create_account(
                CreateAccountParams(
                    from_pubkey=chain.key.pubkey(),
                    to_pubkey=created.pubkey(),
                    lamports=lamports,
                    space=8,
                    owner=program,
                )
            )
        ],
        chain.key,
        created,
    )
    now, before = chain.ledger.slot, chain.ledger.slot - 1
    assert list(chain.ledger.program_accounts(program, now)) == [created.pubkey()]
    assert chain.ledger.program_accounts(program, before) == {}


def test_program_accounts_changed_in_several_slots_are_undone_to_the_one_asked_for() -> None:
    chain = Chain(finality_slots=5)
    program, created = Pubkey.new_unique(), Keypair()
    lamports = chain.ledger.rent_exempt_minimum(8)
    create = create_account(
        CreateAccountParams(
            from_pubkey=chain.key.pubkey(), to_pubkey=created.pubkey(), lamports=lamports, space=8, owner=program
        )
    )
    chain.run([create], chain.key, created)
    first = chain.ledger.slot
    for _ in range(2):
        chain.advance()
        assert chain.ledger.execute(chain.transfer(created.pubkey(), SOL)).error is None
    seen = [chain.ledger.program_accounts(program, first + later) for later in range(3)]
    assert [accounts[created.pubkey()].lamports - lamports for accounts in seen] == [0, SOL, 2 * SOL]


def test_an_emptied_account_is_gone_but_was_there_before() -> None:
    chain = Chain()
    key = chain.funded(SOL)
    chain.advance()
    outcome = chain.ledger.execute(chain.transfer(chain.key.pubkey(), SOL - 5_000, source=key))
    assert outcome.error is None
    assert chain.ledger.account(key.pubkey(), chain.ledger.slot) is None
    assert chain.balance(key.pubkey(), Commitment.CONFIRMED) == SOL


def test_a_failed_transaction_lands_and_costs_its_fee() -> None:
    chain = Chain()
    key = chain.funded(SOL)
    transaction = chain.transfer(Pubkey.new_unique(), 5 * SOL, source=key)
    outcome = chain.ledger.execute(transaction)
    assert outcome.included
    assert outcome.error == {"InstructionError": [0, {"Custom": 1}]}
    record = chain.ledger.store.transaction(transaction.signatures[0])
    assert record is not None
    assert record.post_balances[0] == SOL - 5_000
    assert record.touched == (key.pubkey(),)


def test_a_transaction_nobody_can_pay_for_leaves_no_trace() -> None:
    chain = Chain()
    transaction = chain.transfer(Pubkey.new_unique(), 1, source=Keypair())
    outcome = chain.ledger.execute(transaction)
    assert outcome.error == "AccountNotFound"
    assert not outcome.included
    assert chain.ledger.store.transaction(transaction.signatures[0]) is None
    assert chain.ledger.bank(Commitment.PROCESSED).transaction_count == 0


def test_supply_falls_by_exactly_the_fees() -> None:
    chain = Chain()
    before = chain.ledger.bank(Commitment.PROCESSED).lamports
    chain.funded()
    chain.funded()
    assert chain.ledger.bank(Commitment.PROCESSED).lamports == before - 2 * 5_000


def test_a_slot_takes_only_so_many_transactions() -> None:
    chain = Chain(max_transactions_per_slot=2)
    for lamports in (1, 2):
        chain.ledger.execute(chain.transfer(Pubkey.new_unique(), SOL + lamports))
    late = chain.transfer(Pubkey.new_unique(), SOL)
    with pytest.raises(BlockFull, match="slot 1 already holds 2"):
        chain.ledger.execute(late)
    chain.advance()
    assert chain.ledger.execute(late).error is None


def test_old_blocks_and_their_transactions_are_dropped_together() -> None:
    chain = Chain(max_blocks=10, max_transactions=1_000)
    to = Pubkey.new_unique()
    first = chain.transfer(to)
    chain.ledger.execute(first)
    chain.advance(5)
    last = chain.transfer(to, 2 * SOL)
    chain.ledger.execute(last)
    assert [record.signature for record in chain.ledger.store.newest_first(to)] == [
        last.signatures[0],
        first.signatures[0],
    ]
    chain.advance(8)
    store = chain.ledger.store
    assert store.first_slot == chain.ledger.slot - 10
    assert store.block(store.first_slot - 1) is None
    assert store.transaction(first.signatures[0]) is None
    assert [record.signature for record in store.newest_first(to)] == [last.signatures[0]]


def test_too_many_transactions_drop_the_oldest_block() -> None:
    chain = Chain(max_transactions=3, finality_slots=1)
    sent = []
    for lamports in range(6):
        sent.append(chain.transfer(Pubkey.new_unique(), SOL + lamports))
        chain.ledger.execute(sent[-1])
        chain.advance()
    chain.advance(2)
    kept = [transaction for transaction in sent if chain.ledger.store.transaction(transaction.signatures[0])]
    assert kept == sent[-3:]


def test_programs_see_the_slot_and_the_time() -> None:
    chain = Chain()
    chain.advance(7)
    clock = chain.ledger.account(CLOCK, chain.ledger.slot)
    assert clock is not None
    slot, _, _, _, timestamp = struct.unpack("<QqQQq", clock.data)
    assert slot == chain.ledger.slot == 8
    assert timestamp == int(chain.now)


class Nonce:
    """A nonce account of the chain's key."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        account = Keypair()
        self.address = account.pubkey()
        payer = chain.key.pubkey()
        chain.run(
            [
                create_account(
                    CreateAccountParams(
                        from_pubkey=payer,
                        to_pubkey=self.address,
                        lamports=chain.ledger.rent_exempt_minimum(80),
                        space=80,
                        owner=SYSTEM,
                    )
                ),
                initialize_nonce_account(InitializeNonceAccountParams(nonce_pubkey=self.address, authority=payer)),
            ],
            chain.key,
            account,
        )

    def value(self) -> Hash:
        account = self.chain.ledger.account(self.address, self.chain.ledger.slot)
        assert account is not None
        return Hash(account.data[40:72])

    def transfer(self, lamports: int) -> VersionedTransaction:
        authority = self.chain.key.pubkey()
        advance = advance_nonce_account(
            AdvanceNonceAccountParams(nonce_pubkey=self.address, authorized_pubkey=authority)
        )
        pay = transfer(TransferParams(from_pubkey=authority, to_pubkey=Pubkey.new_unique(), lamports=lamports))
        return self.chain.transaction([advance, pay], blockhash=self.value())


def test_a_durable_nonce_outlives_the_blockhashes_and_works_once() -> None:
    chain = Chain()
    nonce = Nonce(chain)
    transaction = nonce.transfer(SOL)
    before = nonce.value()
    chain.advance(400)
    assert chain.ledger.execute(transaction).error is None
    assert nonce.value() != before
    assert chain.ledger.execute(transaction).error == "BlockhashNotFound"


def test_a_failed_nonce_transaction_uses_up_its_nonce() -> None:
    chain = Chain()
    nonce = Nonce(chain)
    transaction = nonce.transfer(10**18)
    before = nonce.value()
    outcome = chain.ledger.execute(transaction)
    assert outcome.error == {"InstructionError": [1, {"Custom": 1}]}
    assert nonce.value() != before
    assert chain.ledger.execute(transaction).error == "BlockhashNotFound"


def test_another_keys_nonce_is_not_accepted() -> None:
    chain = Chain()
    nonce = Nonce(chain)
    thief = chain.funded()
    advance = advance_nonce_account(
        AdvanceNonceAccountParams(nonce_pubkey=nonce.address, authorized_pubkey=thief.pubkey())
    )
    transaction = chain.transaction([advance], thief, blockhash=nonce.value())
    assert chain.ledger.execute(transaction).error == "BlockhashNotFound"


def test_a_lookup_table_supplies_accounts() -> None:
    chain = Chain()
    to = Pubkey.new_unique()
    table = lookup_table(chain, [Pubkey.new_unique(), to])
    transaction = versioned_transfer(chain, table, to, SOL)
    assert chain.ledger.execute(transaction).error is None
    record = chain.ledger.store.transaction(transaction.signatures[0])
    assert record is not None
    assert record.resolved.loaded_writable == (to,)
    assert chain.balance(to, Commitment.PROCESSED) == SOL
    assert [found.signature for found in chain.ledger.store.newest_first(to)] == [transaction.signatures[0]]


def test_a_missing_lookup_table_is_the_runtimes_own_error() -> None:
    chain = Chain()
    to = Pubkey.new_unique()
    transaction = versioned_transfer(chain, Pubkey.new_unique(), to, SOL)
    assert chain.ledger.execute(transaction).error == "AddressLookupTableNotFound"


def test_a_program_can_be_deployed_and_called() -> None:
    chain = Chain()
    code_account = chain.ledger.account(MEMO, chain.ledger.slot)
    assert code_account is not None
    code, payer = code_account.data, chain.key.pubkey()
    buffer, program = Keypair(), Keypair()

    def create(new: Keypair, space: int) -> Instruction:
        return create_account(
            CreateAccountParams(
                from_pubkey=payer,
                to_pubkey=new.pubkey(),
                lamports=chain.ledger.rent_exempt_minimum(space),
                space=space,
                owner=UPGRADEABLE_LOADER,
            )
        )

    buffer_meta, authority = AccountMeta(buffer.pubkey(), False, True), AccountMeta(payer, True, False)
    initialize = Instruction(UPGRADEABLE_LOADER, struct.pack("<I", 0), [buffer_meta, authority])
    chain.run([create(buffer, 37 + len(code)), initialize], chain.key, buffer)
    for offset in range(0, len(code), 800):
        part = code[offset : offset + 800]
        write = struct.pack("<IIQ", 1, offset, len(part)) + part
        chain.run([Instruction(UPGRADEABLE_LOADER, write, [buffer_meta, authority])])
    chain.advance()
    data_address, _ = Pubkey.find_program_address([bytes(program.pubkey())], UPGRADEABLE_LOADER)
    deploy_accounts = [
        AccountMeta(payer, True, True),
        AccountMeta(data_address, False, True),
        AccountMeta(program.pubkey(), False, True),
        buffer_meta,
        *(AccountMeta(address, False, False) for address in (RENT, CLOCK, SYSTEM)),
        authority,
    ]
    deploy = Instruction(UPGRADEABLE_LOADER, struct.pack("<IQ", 2, len(code)), deploy_accounts)
    chain.run([create(program, 36), deploy], chain.key, program)
    chain.advance()
    outcome = chain.run([Instruction(program.pubkey(), b"hello", [])])
    assert "Program log: hello" in outcome.logs
