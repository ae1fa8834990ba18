"""How often the chain is asked, and what a caller sees while blocks arrive."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from capstan.chain.errors import EveryUpstreamFailed
from capstan.core.hexes import to_checksum_address
from capstan.index.models import Standard
from capstan.storage.schema import token_metadata
from tests.support import canned
from tests.support.canned import deploy, text, word
from tests.support.data import DataSetup, data_services
from tests.support.devnet import EvmDevnet

UNIT = 10**18
COUNT = 200


@pytest.fixture(scope="module")
def many(quiet_devnet: EvmDevnet) -> list[str]:
    """Two hundred tokens: the code of one, put at many addresses."""
    account = quiet_devnet.deployment.accounts[15]
    answers = {
        "name()": text("Many"),
        "symbol()": text("MANY"),
        "decimals()": word(18),
        "totalSupply()": word(1000 * UNIT),
        "balanceOf(address)": word(3 * UNIT),
    }
    code = quiet_devnet.call("eth_getCode", deploy(quiet_devnet, account, canned.canned(answers)), "latest")
    addresses = [to_checksum_address(bytes([7]) * 18 + number.to_bytes(2, "big")) for number in range(COUNT)]
    for address in addresses:
        quiet_devnet.call("hardhat_setCode", address, code)
    quiet_devnet.mine()
    return addresses


@pytest.fixture
async def setup(quiet_devnet: EvmDevnet, tmp_path: Path) -> AsyncIterator[DataSetup]:
    async with data_services(quiet_devnet.url, quiet_devnet.deployment, tmp_path) as found:
        await found.head_known()
        found.index.block = quiet_devnet.block_number()
        yield found


async def test_two_hundred_tokens_take_three_calls_and_then_none(
    setup: DataSetup, many: list[str], quiet_devnet: EvmDevnet
) -> None:
    holder = quiet_devnet.deployment.accounts[0].address
    samples = [sample.address for sample in quiet_devnet.deployment.tokens]
    setup.index.touch(holder, *many, *samples)
    before = setup.relay.reads
    found = await setup.balances(holder, limit=100)
    assert setup.relay.reads - before <= 3
    assert found["total"] == COUNT + 2
    assert [item["contract"] for item in found["tokens"][:2]] == samples, "those with a price come first"
    calls = len(setup.relay.calls)
    for page in (1, 2, 3):
        assert len((await setup.balances(holder, page=page, limit=100))["tokens"]) == (100, 100, 2)[page - 1]
    assert "eth_call" not in setup.relay.calls[calls:]
    pages = [(await setup.balances(holder, page=page, limit=7))["tokens"] for page in range(1, 31)]
    contracts = [item["contract"] for page in pages for item in page]
    assert len(contracts) == len(set(contracts)) == COUNT + 2


async def test_all_who_ask_at_the_same_moment_share_one_reading(
    setup: DataSetup, many: list[str], quiet_devnet: EvmDevnet
) -> None:
    nft = quiet_devnet.deployment.nfts[0].address
    questions = [
        partial(setup.token, many[100]),
        partial(setup.nft, nft, 2),
        partial(setup.collection, nft),
    ]
    for ask in questions:
        await ask()
        quiet_devnet.mine()
        await setup.head_known()
        before = setup.relay.reads
        answers = await asyncio.gather(*(ask() for _ in range(30)))
        assert all(answer == answers[0] for answer in answers)
        assert setup.relay.reads - before <= 2


async def test_new_block_costs_one_call(setup: DataSetup, many: list[str], quiet_devnet: EvmDevnet) -> None:
    holder = "0x" + "55" * 20
    setup.index.touch(holder, *many[:50])
    await setup.balances(holder)
    quiet_devnet.mine()
    await setup.head_known()
    setup.index.block = quiet_devnet.block_number()
    before = setup.relay.reads
    await setup.balances(holder)
    # Names are known, and prices, or that there are none, are for a while.
    assert setup.relay.reads - before == 1


async def test_transfer_is_seen_at_the_next_block(setup: DataSetup, quiet_devnet: EvmDevnet) -> None:
    token = quiet_devnet.deployment.tokens[0].address
    holder = "0x" + "66" * 20
    setup.index.touch(holder, token)
    assert (await setup.balances(holder))["total"] == 0
    sender = quiet_devnet.deployment.accounts[1]
    data = "0xa9059cbb" + holder[2:].rjust(64, "0") + f"{123:064x}"
    assert quiet_devnet.send(sender, token, data=data)["status"] == "0x1"
    await setup.head_known()
    found = await setup.balances(holder)
    assert [(item["balance"], item["formatted_balance"]) for item in found["tokens"]] == [
        ("123", "0.000000000000000123")
    ]
    assert found["tokens"][0]["usd_value"] == "0.00000000000000015375"


async def test_token_that_the_index_learns_of_is_shown_at_the_same_block(
    setup: DataSetup, many: list[str], quiet_devnet: EvmDevnet
) -> None:
    holder = "0x" + "77" * 20
    setup.index.touch(holder, many[0])
    setup.index.block = quiet_devnet.block_number() - 1
    assert (await setup.balances(holder))["total"] == 1
    setup.index.touch(holder, many[1])
    assert (await setup.balances(holder))["total"] == 2


async def test_later_pages_of_owned_nfts_do_not_shift_while_blocks_arrive(
    setup: DataSetup, quiet_devnet: EvmDevnet
) -> None:
    contract, holder = quiet_devnet.deployment.nfts[0].address, "0x" + "8a" * 20
    for token_id in range(70_010, 70_020):
        setup.index.hold(contract, token_id, holder, standard=Standard.ERC721)
    first = (await setup.owned(holder, page=1, limit=4))["nfts"]
    # One that would come before all others, and one at the end.
    setup.index.hold(contract, 70_000, holder, standard=Standard.ERC721)
    setup.index.hold(contract, 70_099, holder, standard=Standard.ERC721)
    pages = [first, *[(await setup.owned(holder, page=page, limit=4))["nfts"] for page in (2, 3)]]
    assert [item["token_id"] for page in pages for item in page] == [str(number) for number in range(70_010, 70_020)]
    assert (await setup.owned(holder, page=4, limit=4))["nfts"] == []
    anew = await setup.owned(holder, page=1, limit=4)
    assert (anew["total"], anew["nfts"][0]["token_id"]) == (12, "70000")


async def test_later_pages_do_not_shift_while_blocks_arrive(
    setup: DataSetup, many: list[str], quiet_devnet: EvmDevnet
) -> None:
    holder = "0x" + "88" * 20
    setup.index.touch(holder, *many[10:20])
    first = (await setup.balances(holder, page=1, limit=5))["tokens"]
    # A token that would come before all others.
    setup.index.tokens[bytes.fromhex("88" * 20)].insert(0, bytes.fromhex(many[0][2:]))
    quiet_devnet.mine()
    await setup.head_known()
    second = (await setup.balances(holder, page=2, limit=5))["tokens"]
    assert [item["contract"] for item in first + second] == many[10:20]
    assert (await setup.balances(holder, page=1, limit=5))["tokens"][0]["contract"] == many[0]


async def test_callers_who_ask_at_once_share_a_reading(setup: DataSetup, many: list[str]) -> None:
    holder = "0x" + "99" * 20
    setup.index.touch(holder, *many[:30])
    before = setup.relay.reads
    answers = await asyncio.gather(*(setup.balances(holder) for _ in range(20)))
    assert all(answer == answers[0] for answer in answers)
    assert setup.relay.reads - before <= 3


async def test_names_survive_a_restart(quiet_devnet: EvmDevnet, tmp_path: Path, many: list[str]) -> None:
    holder = "0x" + "aa" * 20
    for attempt in range(2):
        async with data_services(quiet_devnet.url, quiet_devnet.deployment, tmp_path) as setup:
            setup.index.touch(holder, *many)
            found = await setup.balances(holder)
            assert found["tokens"][0]["symbol"] == "MANY"
            async with setup.database.read() as connection:
                rows = (await connection.execute(token_metadata.select())).all()
            assert len(rows) == COUNT
            if attempt:
                async with setup.database.write() as connection:
                    await connection.execute(token_metadata.update().values(symbol="OLD"))
    async with data_services(quiet_devnet.url, quiet_devnet.deployment, tmp_path) as setup:
        setup.index.touch(holder, *many)
        assert (await setup.balances(holder))["tokens"][0]["symbol"] == "OLD", "read from the table"
    changed = {"tokens.metadata_seconds": 0.001}
    async with data_services(quiet_devnet.url, quiet_devnet.deployment, tmp_path, settings=changed) as setup:
        setup.index.touch(holder, *many)
        assert (await setup.balances(holder))["tokens"][0]["symbol"] == "MANY", "too old, read from the chain"


async def test_list_longer_than_the_bound_says_that_it_is_not_complete(
    quiet_devnet: EvmDevnet, tmp_path: Path, many: list[str]
) -> None:
    bound = {"tokens.most_tokens": 10}
    async with data_services(quiet_devnet.url, quiet_devnet.deployment, tmp_path, settings=bound) as setup:
        holder = "0x" + "bb" * 20
        setup.index.touch(holder, *many)
        answer = await setup.data.tokens.balances(setup.network, holder, 1, 50)
        assert msgspec.json.decode(answer.body)["total"] == 10
        assert answer.coverage.complete is False


async def test_without_upstream_the_failure_is_told(setup: DataSetup, quiet_devnet: EvmDevnet, many: list[str]) -> None:
    holder = "0x" + "cc" * 20
    setup.index.touch(holder, many[0])
    setup.relay.broken = True
    with pytest.raises(EveryUpstreamFailed):
        await setup.balances(holder)


async def test_logos_come_from_token_lists(quiet_devnet: EvmDevnet, tmp_path: Path) -> None:
    token = quiet_devnet.deployment.tokens[0].address
    entries = [
        {"chainId": 1, "address": token, "logoURI": "https://example.com/other-chain.png"},
        {"chainId": 31337, "address": token.lower(), "logoURI": "https://example.com/cap.png", "tags": ["x"]},
        {"chainId": 31337, "address": "not an address", "logoURI": "https://example.com/x.png"},
        {"chainId": 31337, "address": quiet_devnet.deployment.tokens[1].address, "logoURI": "javascript:alert(1)"},
    ]
    path = tmp_path / "list.json"
    path.write_bytes(msgspec.json.encode({"name": "Samples", "tokens": entries}))
    lists = {"tokens.token_lists": [str(tmp_path / "missing.json"), str(path)]}
    async with data_services(quiet_devnet.url, quiet_devnet.deployment, tmp_path, settings=lists) as setup:
        assert (await setup.token(token))["logo_url"] == "https://example.com/cap.png"
        assert (await setup.token(quiet_devnet.deployment.tokens[1].address))["logo_url"] is None


async def test_nfts_cost_one_call_a_block(setup: DataSetup, quiet_devnet: EvmDevnet) -> None:
    contract = quiet_devnet.deployment.nfts[0].address
    holder = quiet_devnet.deployment.accounts[0].address
    setup.index.hold(contract, 2, holder, standard=Standard.ERC721)
    questions = [partial(setup.nft, contract, 2), partial(setup.collection, contract), partial(setup.owned, holder)]
    for ask in questions:
        before = setup.relay.reads
        first = await ask()
        assert setup.relay.reads - before == 1
        assert await ask() == first
        assert setup.relay.reads - before == 1


async def test_list_is_asked_again_while_history_is_being_read(setup: DataSetup, many: list[str]) -> None:
    holder = "0x" + "dd" * 20
    setup.index.complete = False
    assert (await setup.balances(holder))["total"] == 0
    setup.index.touch(holder, many[0])
    assert (await setup.balances(holder))["total"] == 1
