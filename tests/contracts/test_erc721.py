"""SampleERC721 on the real chain: the ERC-721 standard with metadata, open minting and burning."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from urllib.parse import unquote

import pytest
from web3.contract import Contract
from web3.exceptions import ContractLogicError

from tests.contracts.chain import ZERO_ADDRESS, Chain

LARGEST_ID = 2**256 - 2


@pytest.fixture
def collection(chain: Chain) -> Contract:
    contract = chain.deploy_sample("SampleERC721", "Some Things", "THNG")
    chain.transact(chain.bob, contract.functions.mint(chain.alice.address, 1))
    return contract


def test_supports_the_interfaces_of_the_standard(collection: Contract) -> None:
    supports = collection.functions.supportsInterface
    for interface in ("0x01ffc9a7", "0x80ac58cd", "0x5b5e139f"):
        assert supports(bytes.fromhex(interface[2:])).call() is True
    for interface in ("0xffffffff", "0xd9b67a26", "0x00000000"):
        assert supports(bytes.fromhex(interface[2:])).call() is False


def test_anyone_mints_a_free_id(chain: Chain, collection: Contract) -> None:
    receipt = chain.transact(chain.carol, collection.functions.mint(chain.bob.address, 7))
    assert chain.events(collection, "Transfer", receipt) == [
        {"sender": ZERO_ADDRESS, "receiver": chain.bob.address, "tokenId": 7}
    ]
    assert len(receipt["logs"][0]["topics"]) == 4
    assert collection.functions.ownerOf(7).call() == chain.bob.address
    assert collection.functions.balanceOf(chain.bob.address).call() == 1
    assert collection.functions.totalSupply().call() == 2
    with pytest.raises(ContractLogicError, match="already minted"):
        collection.functions.mint(chain.carol.address, 7).call()


def test_what_was_never_minted_has_no_owner_approval_or_uri(collection: Contract) -> None:
    for function in (
        collection.functions.ownerOf(99),
        collection.functions.getApproved(99),
        collection.functions.tokenURI(99),
    ):
        with pytest.raises(ContractLogicError, match="no such token"):
            function.call()
    with pytest.raises(ContractLogicError, match="zero address"):
        collection.functions.balanceOf(ZERO_ADDRESS).call()


def test_the_owner_transfers_and_a_stranger_cannot(chain: Chain, collection: Contract) -> None:
    move = collection.functions.transferFrom(chain.alice.address, chain.bob.address, 1)
    with pytest.raises(ContractLogicError, match="not owner nor approved"):
        move.call({"from": chain.carol.address})
    chain.transact(chain.alice, move)
    assert collection.functions.ownerOf(1).call() == chain.bob.address
    assert collection.functions.balanceOf(chain.alice.address).call() == 0
    with pytest.raises(ContractLogicError, match="incorrect owner"):
        move.call({"from": chain.bob.address})


def test_an_approval_lets_another_transfer_once(chain: Chain, collection: Contract) -> None:
    with pytest.raises(ContractLogicError, match="not owner nor operator"):
        collection.functions.approve(chain.carol.address, 1).call({"from": chain.carol.address})
    chain.transact(chain.alice, collection.functions.approve(chain.carol.address, 1))
    assert collection.functions.getApproved(1).call() == chain.carol.address
    chain.transact(chain.carol, collection.functions.transferFrom(chain.alice.address, chain.bob.address, 1))
    assert collection.functions.getApproved(1).call() == ZERO_ADDRESS
    with pytest.raises(ContractLogicError, match="not owner nor approved"):
        collection.functions.transferFrom(chain.bob.address, chain.carol.address, 1).call({"from": chain.carol.address})


def test_an_operator_moves_everything_until_revoked(chain: Chain, collection: Contract) -> None:
    chain.transact(chain.alice, collection.functions.setApprovalForAll(chain.carol.address, True))
    assert collection.functions.isApprovedForAll(chain.alice.address, chain.carol.address).call() is True
    move = collection.functions.transferFrom(chain.alice.address, chain.bob.address, 1)
    move.call({"from": chain.carol.address})
    chain.transact(chain.alice, collection.functions.setApprovalForAll(chain.carol.address, False))
    with pytest.raises(ContractLogicError, match="not owner nor approved"):
        move.call({"from": chain.carol.address})


def test_a_safe_transfer_asks_the_receiving_contract(chain: Chain, collection: Contract) -> None:
    receiver = chain.deploy_receiver(accepts=True)
    safe_transfer = collection.get_function_by_signature("safeTransferFrom(address,address,uint256,bytes)")
    chain.transact(chain.alice, safe_transfer(chain.alice.address, receiver.address, 1, b"hello"))
    assert collection.functions.ownerOf(1).call() == receiver.address
    assert receiver.functions.operator().call() == chain.alice.address
    assert receiver.functions.sender().call() == chain.alice.address
    assert receiver.functions.ids(0).call() == 1
    assert receiver.functions.data().call() == b"hello"


def test_a_safe_transfer_to_a_contract_that_cannot_take_it_reverts(chain: Chain, collection: Contract) -> None:
    refusing = chain.deploy_receiver(accepts=False)
    safe_transfer = collection.get_function_by_signature("safeTransferFrom(address,address,uint256)")
    with pytest.raises(ContractLogicError, match="the receiver refused"):
        safe_transfer(chain.alice.address, refusing.address, 1).call({"from": chain.alice.address})
    # A contract without the receiver function at all.
    with pytest.raises(ContractLogicError):
        safe_transfer(chain.alice.address, collection.address, 1).call({"from": chain.alice.address})
    chain.transact(chain.alice, safe_transfer(chain.alice.address, chain.bob.address, 1))
    assert collection.functions.ownerOf(1).call() == chain.bob.address


def test_burn_frees_the_id(chain: Chain, collection: Contract) -> None:
    with pytest.raises(ContractLogicError, match="not owner nor approved"):
        collection.functions.burn(1).call({"from": chain.bob.address})
    receipt = chain.transact(chain.alice, collection.functions.burn(1))
    assert chain.events(collection, "Transfer", receipt) == [
        {"sender": chain.alice.address, "receiver": ZERO_ADDRESS, "tokenId": 1}
    ]
    assert collection.functions.totalSupply().call() == 0
    chain.transact(chain.bob, collection.functions.mint(chain.bob.address, 1))
    assert collection.functions.ownerOf(1).call() == chain.bob.address


@pytest.mark.parametrize("token_id", [0, 2, 1234, LARGEST_ID])
def test_an_even_id_carries_json_metadata_on_chain(chain: Chain, collection: Contract, token_id: int) -> None:
    chain.transact(chain.bob, collection.functions.mint(chain.alice.address, token_id))
    uri = collection.functions.tokenURI(token_id).call()
    head, _, body = uri.partition(",")
    assert head == "data:application/json;utf8"
    # Readers differ in whether they undo percent escapes and cut at "#"; both must see the same.
    assert "#" not in uri
    assert unquote(body) == body
    metadata = json.loads(body)
    assert metadata["name"] == f"Capstan Sample {token_id}"
    assert metadata["description"]
    assert metadata["attributes"] == [
        {"trait_type": "Storage", "value": "on-chain"},
        {"trait_type": "Last digit", "value": str(token_id % 10)},
    ]
    image_head, _, image = metadata["image"].partition(",")
    assert image_head == "data:image/svg+xml;utf8"
    assert ElementTree.fromstring(image).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - our own contract's text


@pytest.mark.parametrize("token_id", [1, 2**256 - 1])
def test_an_odd_id_points_to_ipfs(chain: Chain, collection: Contract, token_id: int) -> None:
    if token_id != 1:
        chain.transact(chain.bob, collection.functions.mint(chain.alice.address, token_id))
    uri = collection.functions.tokenURI(token_id).call()
    assert re.fullmatch(rf"ipfs://bafybei[a-z2-7]{{52}}/{token_id}\.json", uri)


def test_the_deployed_sample_has_an_even_and_an_odd_id_per_holder(chain: Chain, collection: Contract) -> None:
    deployment = chain.devnet.deployment
    sample = chain.contract(deployment.nfts[0].address, collection.abi)
    assert sample.functions.name().call() == "Capstan Sample Collectibles"
    for token_id in range(1, 7):
        assert sample.functions.ownerOf(token_id).call() == deployment.accounts[(token_id - 1) // 2].address
