"""Instructions in jsonParsed form: known ones by name, broken and unknown ones left as they are."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.instruction import CompiledInstruction
from solders.pubkey import Pubkey
from solders.system_program import (
    AllocateWithSeedParams,
    AssignWithSeedParams,
    CreateAccountWithSeedParams,
    TransferWithSeedParams,
    allocate_with_seed,
    assign_with_seed,
    create_account_with_seed,
    transfer_with_seed,
)

from capstan.devnet.solana.instruction_json import parse_instruction
from capstan.devnet.solana.programs import ASSOCIATED_TOKEN, MEMO_PROGRAMS, SYSTEM, TOKEN

KEYS = [Pubkey.new_unique() for _ in range(6)]


def parse(program: Pubkey, data: bytes, accounts: int) -> dict[str, Any]:
    instruction = CompiledInstruction(6, data, bytes(range(accounts)))
    return parse_instruction(instruction, [*KEYS, program], 1)


def test_seeded_system_instructions_are_read_as_solders_writes_them() -> None:
    base, owner, other = KEYS[2], KEYS[3], KEYS[1]
    written = [
        create_account_with_seed(
            CreateAccountWithSeedParams(
                from_pubkey=KEYS[0], to_pubkey=other, base=base, seed="sööd", lamports=7, space=8, owner=owner
            )
        ),
        allocate_with_seed(AllocateWithSeedParams(address=KEYS[0], base=base, seed="sööd", space=8, owner=owner)),
        assign_with_seed(AssignWithSeedParams(address=KEYS[0], base=base, seed="sööd", owner=owner)),
        transfer_with_seed(
            TransferWithSeedParams(
                from_pubkey=KEYS[0], from_base=other, from_seed="sööd", from_owner=owner, to_pubkey=base, lamports=7
            )
        ),
    ]
    infos = [parse(SYSTEM, item.data, 3)["parsed"] for item in written]
    assert [info["type"] for info in infos] == [
        "createAccountWithSeed",
        "allocateWithSeed",
        "assignWithSeed",
        "transferWithSeed",
    ]
    assert infos[0]["info"] == {
        "source": str(KEYS[0]),
        "newAccount": str(other),
        "base": str(base),
        "seed": "sööd",
        "lamports": 7,
        "space": 8,
        "owner": str(owner),
    }
    assert infos[3]["info"]["sourceSeed"] == "sööd"
    assert infos[3]["info"]["sourceOwner"] == str(owner)


def test_a_multisignature_authority_lists_its_signers() -> None:
    info = parse(TOKEN, struct.pack("<BQ", 3, 9), 5)["parsed"]["info"]
    assert info == {
        "source": str(KEYS[0]),
        "destination": str(KEYS[1]),
        "amount": "9",
        "multisigAuthority": str(KEYS[2]),
        "signers": [str(KEYS[3]), str(KEYS[4])],
    }


def test_a_change_of_authority_names_what_changes_hands() -> None:
    parsed = parse(TOKEN, b"\x06\x02\x01" + bytes(KEYS[5]), 2)["parsed"]
    assert parsed["type"] == "setAuthority"
    assert parsed["info"] == {
        "account": str(KEYS[0]),
        "authorityType": "accountOwner",
        "newAuthority": str(KEYS[5]),
        "authority": str(KEYS[1]),
    }


@pytest.mark.parametrize("program", [SYSTEM, TOKEN, ASSOCIATED_TOKEN, next(iter(MEMO_PROGRAMS)), Pubkey.new_unique()])
@given(data=st.binary(max_size=80), accounts=st.integers(min_value=0, max_value=6))
def test_nothing_a_program_may_be_sent_breaks_the_parser(program: Pubkey, data: bytes, accounts: int) -> None:
    result = parse(program, data, accounts)
    assert result["programId"] == str(program)
    assert ("parsed" in result) != ("data" in result)


def test_an_unknown_program_is_partially_decoded() -> None:
    program = Pubkey.new_unique()
    assert parse(program, b"\x01\x02", 2) == {
        "programId": str(program),
        "accounts": [str(KEYS[0]), str(KEYS[1])],
        "data": "5T",
        "stackHeight": 1,
    }
