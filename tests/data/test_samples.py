"""Tokens and NFTs of the development chain: what the services say is what the contracts say."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from capstan.core.errors import InvalidRequest, NotFound
from capstan.index.models import Standard
from tests.support.data import DataSetup, data_services
from tests.support.devnet import EvmDevnet

UNKNOWN = "0x00000000000000000000000000000000DeaDBeef"


@pytest.fixture
async def setup(quiet_devnet: EvmDevnet, tmp_path: Path) -> AsyncIterator[DataSetup]:
    async with data_services(quiet_devnet.url, quiet_devnet.deployment, tmp_path) as found:
        yield found


async def test_balances_have_every_field(setup: DataSetup, quiet_devnet: EvmDevnet) -> None:
    cap, cusd = quiet_devnet.deployment.tokens
    holder = quiet_devnet.deployment.accounts[0].address
    setup.index.touch(holder, cap.address, cusd.address)
    assert await setup.balances(holder.lower()) == {
        "address": holder.lower(),
        "chain": "ethereum",
        "tokens": [
            {
                "contract": cap.address,
                "symbol": "CAP",
                "name": "Capstan Sample Token",
                "decimals": 18,
                "balance": "10000000000000000000000",
                "formatted_balance": "10000",
                "usd_value": "12500",
                "logo_url": None,
            },
            {
                "contract": cusd.address,
                "symbol": "CUSD",
                "name": "Capstan Sample Dollar",
                "decimals": 6,
                "balance": "10000000000",
                "formatted_balance": "10000",
                "usd_value": "10000",
                "logo_url": None,
            },
        ],
        "page": 1,
        "total": 2,
    }


async def test_token_metadata_has_every_field(setup: DataSetup, quiet_devnet: EvmDevnet) -> None:
    cap = quiet_devnet.deployment.tokens[0]
    found = await setup.token(cap.address)
    supply = int(quiet_devnet.call("eth_call", {"to": cap.address, "data": "0x18160ddd"}, "latest"), 16)
    assert found == {
        "contract": cap.address,
        "chain": "ethereum",
        "name": "Capstan Sample Token",
        "symbol": "CAP",
        "decimals": 18,
        "total_supply": str(supply),
        "formatted_total_supply": str(supply // 10**18),
        "price_usd": "1.25",
        "market_cap_usd": str(supply * 125 // 100 // 10**18),
        "logo_url": None,
    }


async def test_what_is_no_token_is_not_found(setup: DataSetup, quiet_devnet: EvmDevnet) -> None:
    with pytest.raises(NotFound, match="no contract"):
        await setup.token(UNKNOWN)
    with pytest.raises(NotFound, match="not an ERC-20"):
        await setup.token(quiet_devnet.deployment.entry_points["0.7"])
    with pytest.raises(NotFound, match="not an ERC-20"):
        await setup.token(quiet_devnet.deployment.nfts[0].address)
    with pytest.raises(InvalidRequest, match="contract: an address"):
        await setup.token("0x1234")
    with pytest.raises(InvalidRequest, match="address: an address"):
        await setup.balances("vitalik.eth")


async def test_nft_with_a_document_on_chain(setup: DataSetup, quiet_devnet: EvmDevnet) -> None:
    contract = quiet_devnet.deployment.nfts[0].address
    assert not setup.index.followed
    found = await setup.nft(contract, 2)
    assert setup.index.followed == {"ethereum/devnet"}, "whoever shows documents wants to hear of changes"
    image = found.pop("image_url")
    assert image.startswith("data:image/svg+xml;utf8,<svg ")
    assert found == {
        "contract": contract,
        "token_id": "2",
        "name": "Capstan Sample 2",
        "description": "A sample token of the Capstan development chain.",
        "image_gateway_url": None,
        "standard": "ERC721",
        "owner": quiet_devnet.deployment.accounts[0].address,
        "traits": [
            {"trait_type": "Storage", "value": "on-chain"},
            {"trait_type": "Last digit", "value": "2"},
        ],
    }


async def test_nft_whose_document_cannot_be_had_has_null_fields(setup: DataSetup, quiet_devnet: EvmDevnet) -> None:
    contract = quiet_devnet.deployment.nfts[0].address
    found = await setup.nft(contract, 3)
    assert found["owner"] == quiet_devnet.deployment.accounts[1].address
    assert (found["name"], found["image_url"], found["traits"]) == (None, None, [])


async def test_nft_that_does_not_exist_is_not_found(setup: DataSetup, quiet_devnet: EvmDevnet) -> None:
    contract = quiet_devnet.deployment.nfts[0].address
    with pytest.raises(NotFound, match="token 999 "):
        await setup.nft(contract, 999)
    with pytest.raises(NotFound, match="no contract"):
        await setup.nft(UNKNOWN, 1)
    with pytest.raises(NotFound, match="neither ERC721 nor ERC1155"):
        await setup.nft(quiet_devnet.deployment.tokens[0].address, 1)
    for wrong in ("-1", "1.5", "0x", "", "one", str(2**256), "0x" + "f" * 65, "\uff11"):
        with pytest.raises(InvalidRequest, match="token_id"):
            await setup.nft(contract, wrong)


async def test_owner_of_a_shared_id_is_null(setup: DataSetup, quiet_devnet: EvmDevnet) -> None:
    contract = quiet_devnet.deployment.nfts[1].address
    accounts = quiet_devnet.deployment.accounts
    for account in accounts[:3]:
        setup.index.hold(contract, 1, account.address, standard=Standard.ERC1155, amount=25)
    setup.index.hold(contract, 2, accounts[0].address, standard=Standard.ERC1155, amount=5)
    setup.index.complete = False
    assert (await setup.nft(contract, "0x2"))["owner"] is None, "others may hold it that are not known yet"
    setup.index.complete = True
    assert (await setup.nft(contract, 1))["owner"] is None
    assert (await setup.nft(contract, 2))["owner"] == accounts[0].address


async def test_collections_have_every_field(setup: DataSetup, quiet_devnet: EvmDevnet) -> None:
    unique, shared = quiet_devnet.deployment.nfts
    accounts = quiet_devnet.deployment.accounts
    for token_id in range(1, 7):
        setup.index.hold(unique.address, token_id, accounts[(token_id - 1) // 2].address, standard=Standard.ERC721)
    setup.index.hold(shared.address, 1, accounts[0].address, standard=Standard.ERC1155)
    setup.index.hold(shared.address, 2, accounts[0].address, standard=Standard.ERC1155)
    assert await setup.collection(unique.address) == {
        "contract": unique.address,
        "chain": "ethereum",
        "name": "Capstan Sample Collectibles",
        "symbol": "CAPN",
        "standard": "ERC721",
        "total_supply": 6,
        "num_owners": 3,
        "floor_price_eth": None,
        "floor_price_usd": None,
        "banner_url": None,
        "image_url": None,
        "description": None,
    }
    setup.index.complete = False
    found = await setup.collection(shared.address)
    assert (found["total_supply"], found["num_owners"]) == (None, None)
    setup.index.complete = True
    found = await setup.collection(shared.address)
    assert (found["standard"], found["total_supply"], found["num_owners"]) == ("ERC1155", 2, 1)


async def test_owned_lists_names_from_documents(setup: DataSetup, quiet_devnet: EvmDevnet) -> None:
    unique, shared = quiet_devnet.deployment.nfts
    holder = quiet_devnet.deployment.accounts[0].address
    for token_id in (1, 2):
        setup.index.hold(unique.address, token_id, holder, standard=Standard.ERC721)
    setup.index.hold(shared.address, 2, holder, standard=Standard.ERC1155)
    found = await setup.owned(holder)
    assert (found["address"], found["page"], found["total"]) == (holder, 1, 3)
    by_id = {(item["contract"], item["token_id"]): item for item in found["nfts"]}
    assert by_id[unique.address, "2"]["name"] == "Capstan Sample 2"
    assert by_id[unique.address, "2"]["collection_name"] == "Capstan Sample Collectibles"
    assert by_id[unique.address, "1"]["name"] is None
    assert by_id[shared.address, "2"]["standard"] == "ERC1155"
    second = await setup.owned(holder, page=2, limit=2)
    assert second["nfts"] == found["nfts"][2:]
    assert (await setup.owned(holder, page=9))["nfts"] == []
