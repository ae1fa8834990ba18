"""SampleERC1155 on the real chain: the ERC-1155 standard with batches, open minting and burning."""

from __future__ import annotations

import pytest
from web3.contract import Contract
from web3.exceptions import ContractLogicError
from web3.types import TxParams

from tests.contracts.chain import ZERO_ADDRESS, Chain


@pytest.fixture
def items(chain: Chain) -> Contract:
    contract = chain.deploy_sample("SampleERC1155", "Some Items", "ITEM")
    chain.transact(chain.bob, contract.functions.mint(chain.alice.address, 1, 100))
    chain.transact(chain.bob, contract.functions.mint(chain.alice.address, 2, 5))
    return contract


def test_supports_the_interfaces_of_the_standard(items: Contract) -> None:
    supports = items.functions.supportsInterface
    for interface in ("0x01ffc9a7", "0xd9b67a26", "0x0e89341c"):
        assert supports(bytes.fromhex(interface[2:])).call() is True
    for interface in ("0xffffffff", "0x80ac58cd"):
        assert supports(bytes.fromhex(interface[2:])).call() is False


def test_the_uri_leaves_the_id_to_the_reader(items: Contract) -> None:
    uri = items.functions.uri(7).call()
    assert uri.startswith("ipfs://bafybei")
    assert uri.endswith("/{id}.json")


def test_anyone_mints(chain: Chain, items: Contract) -> None:
    receipt = chain.transact(chain.carol, items.functions.mint(chain.bob.address, 9, 3))
    assert chain.events(items, "TransferSingle", receipt) == [
        {
            "operator": chain.carol.address,
            "sender": ZERO_ADDRESS,
            "receiver": chain.bob.address,
            "id": 9,
            "value": 3,
        }
    ]
    # keccak256("TransferSingle(address,address,address,uint256,uint256)")
    assert receipt["logs"][0]["topics"][0] == "0xc3d58168c5ae7397731d063d5bbf3d657854427343f4c083240f7aacaa2d0f62"
    assert items.functions.balanceOf(chain.bob.address, 9).call() == 3
    assert items.functions.totalSupply(9).call() == 3


def test_balances_are_read_in_a_batch(chain: Chain, items: Contract) -> None:
    owners = [chain.alice.address, chain.alice.address, chain.bob.address]
    assert items.functions.balanceOfBatch(owners, [1, 2, 1]).call() == [100, 5, 0]
    with pytest.raises(ContractLogicError, match="differ in length"):
        items.functions.balanceOfBatch(owners, [1]).call()


def test_the_owner_transfers_and_a_stranger_cannot(chain: Chain, items: Contract) -> None:
    move = items.functions.safeTransferFrom(chain.alice.address, chain.bob.address, 1, 40, b"")
    with pytest.raises(ContractLogicError, match="not owner nor approved"):
        move.call({"from": chain.bob.address})
    chain.transact(chain.alice, move)
    assert items.functions.balanceOfBatch([chain.alice.address, chain.bob.address], [1, 1]).call() == [60, 40]
    with pytest.raises(ContractLogicError, match="insufficient balance"):
        items.functions.safeTransferFrom(chain.alice.address, chain.bob.address, 1, 61, b"").call(
            {"from": chain.alice.address}
        )
    with pytest.raises(ContractLogicError, match="zero address"):
        items.functions.safeTransferFrom(chain.alice.address, ZERO_ADDRESS, 1, 1, b"").call(
            {"from": chain.alice.address}
        )


def test_an_operator_transfers_until_revoked(chain: Chain, items: Contract) -> None:
    chain.transact(chain.alice, items.functions.setApprovalForAll(chain.carol.address, True))
    move = items.functions.safeTransferFrom(chain.alice.address, chain.bob.address, 1, 1, b"")
    move.call({"from": chain.carol.address})
    chain.transact(chain.alice, items.functions.setApprovalForAll(chain.carol.address, False))
    with pytest.raises(ContractLogicError, match="not owner nor approved"):
        move.call({"from": chain.carol.address})


def test_a_batch_moves_all_or_nothing(chain: Chain, items: Contract) -> None:
    batch = items.functions.safeBatchTransferFrom
    receipt = chain.transact(chain.alice, batch(chain.alice.address, chain.bob.address, [1, 2], [10, 5], b""))
    assert chain.events(items, "TransferBatch", receipt) == [
        {
            "operator": chain.alice.address,
            "sender": chain.alice.address,
            "receiver": chain.bob.address,
            "ids": [1, 2],
            "values": [10, 5],
        }
    ]
    # keccak256("TransferBatch(address,address,address,uint256[],uint256[])")
    assert receipt["logs"][0]["topics"][0] == "0x4a39dc06d4c0dbc64b70af90fd698a233a518aa5d07e595d983b8c0526c8f7fb"
    assert items.functions.balanceOfBatch([chain.bob.address] * 2, [1, 2]).call() == [10, 5]
    with pytest.raises(ContractLogicError, match="insufficient balance"):
        batch(chain.alice.address, chain.bob.address, [1, 2], [1, 1], b"").call({"from": chain.alice.address})
    with pytest.raises(ContractLogicError, match="differ in length"):
        batch(chain.alice.address, chain.bob.address, [1, 2], [1], b"").call({"from": chain.alice.address})
    with pytest.raises(ContractLogicError, match="not owner nor approved"):
        batch(chain.alice.address, chain.bob.address, [1], [1], b"").call({"from": chain.carol.address})


def test_the_same_id_twice_in_a_batch_counts_twice(chain: Chain, items: Contract) -> None:
    batch = items.functions.safeBatchTransferFrom
    with pytest.raises(ContractLogicError, match="insufficient balance"):
        batch(chain.alice.address, chain.bob.address, [2, 2], [5, 1], b"").call({"from": chain.alice.address})
    chain.transact(chain.alice, batch(chain.alice.address, chain.bob.address, [2, 2], [2, 3], b""))
    assert items.functions.balanceOf(chain.bob.address, 2).call() == 5


def test_receiving_contracts_are_asked(chain: Chain, items: Contract) -> None:
    receiver = chain.deploy_receiver(accepts=True)
    chain.transact(
        chain.alice, items.functions.safeTransferFrom(chain.alice.address, receiver.address, 1, 2, b"single")
    )
    assert receiver.functions.data().call() == b"single"
    assert receiver.functions.amounts(0).call() == 2
    chain.transact(
        chain.alice,
        items.functions.safeBatchTransferFrom(chain.alice.address, receiver.address, [1, 2], [3, 4], b"batch"),
    )
    assert receiver.functions.data().call() == b"batch"
    assert [receiver.functions.ids(index).call() for index in range(2)] == [1, 2]
    assert [receiver.functions.amounts(index).call() for index in range(2)] == [3, 4]
    chain.transact(chain.bob, items.functions.mint(receiver.address, 3, 1))
    assert receiver.functions.sender().call() == ZERO_ADDRESS


def test_contracts_that_cannot_take_the_items_make_it_revert(chain: Chain, items: Contract) -> None:
    refusing = chain.deploy_receiver(accepts=False)
    owner: TxParams = {"from": chain.alice.address}
    with pytest.raises(ContractLogicError, match="the receiver refused"):
        items.functions.safeTransferFrom(chain.alice.address, refusing.address, 1, 1, b"").call(owner)
    with pytest.raises(ContractLogicError, match="the receiver refused"):
        items.functions.safeBatchTransferFrom(chain.alice.address, refusing.address, [1], [1], b"").call(owner)
    with pytest.raises(ContractLogicError, match="the receiver refused"):
        items.functions.mint(refusing.address, 1, 1).call(owner)
    with pytest.raises(ContractLogicError):
        items.functions.safeTransferFrom(chain.alice.address, items.address, 1, 1, b"").call(owner)


def test_burn_takes_items_out_of_the_supply(chain: Chain, items: Contract) -> None:
    burn = items.functions.burn(chain.alice.address, 1, 60)
    with pytest.raises(ContractLogicError, match="not owner nor approved"):
        burn.call({"from": chain.bob.address})
    receipt = chain.transact(chain.alice, burn)
    assert chain.events(items, "TransferSingle", receipt)[0]["receiver"] == ZERO_ADDRESS
    assert items.functions.totalSupply(1).call() == 40
    with pytest.raises(ContractLogicError, match="exceeds balance"):
        items.functions.burn(chain.alice.address, 1, 41).call({"from": chain.alice.address})


def test_the_deployed_sample_has_a_shared_and_a_single_id(chain: Chain, items: Contract) -> None:
    deployment = chain.devnet.deployment
    sample = chain.contract(deployment.nfts[1].address, items.abi)
    owners = [account.address for account in deployment.accounts[:3]]
    assert sample.functions.balanceOfBatch(owners, [1, 1, 1]).call() == [100, 50, 25]
    assert sample.functions.balanceOfBatch(owners, [2, 2, 2]).call() == [5, 0, 0]
