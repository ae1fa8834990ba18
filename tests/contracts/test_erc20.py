"""SampleERC20 on the real chain: the ERC-20 standard, open minting and burning."""

from __future__ import annotations

import pytest
from web3.contract import Contract
from web3.exceptions import ContractLogicError

from tests.contracts.chain import ZERO_ADDRESS, Chain

MAX = 2**256 - 1


@pytest.fixture
def token(chain: Chain) -> Contract:
    return chain.deploy_sample("SampleERC20", "Some Token", "SOME", 9)


def test_describes_itself(token: Contract) -> None:
    assert token.functions.name().call() == "Some Token"
    assert token.functions.symbol().call() == "SOME"
    assert token.functions.decimals().call() == 9
    assert token.functions.totalSupply().call() == 0


def test_anyone_mints(chain: Chain, token: Contract) -> None:
    receipt = chain.transact(chain.bob, token.functions.mint(chain.alice.address, 100))
    assert chain.events(token, "Transfer", receipt) == [
        {"sender": ZERO_ADDRESS, "receiver": chain.alice.address, "value": 100}
    ]
    assert token.functions.balanceOf(chain.alice.address).call() == 100
    assert token.functions.totalSupply().call() == 100


def test_minting_beyond_the_largest_supply_or_to_nobody_reverts(chain: Chain, token: Contract) -> None:
    chain.transact(chain.bob, token.functions.mint(chain.alice.address, MAX))
    with pytest.raises(ContractLogicError):
        token.functions.mint(chain.bob.address, 1).call()
    with pytest.raises(ContractLogicError, match="zero address"):
        token.functions.mint(ZERO_ADDRESS, 0).call()


def test_transfer_moves_tokens_and_emits_the_standard_event(chain: Chain, token: Contract) -> None:
    chain.transact(chain.bob, token.functions.mint(chain.alice.address, 100))
    receipt = chain.transact(chain.alice, token.functions.transfer(chain.bob.address, 30))
    # keccak256("Transfer(address,address,uint256)")
    assert receipt["logs"][0]["topics"][0] == "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
    assert len(receipt["logs"][0]["topics"]) == 3
    assert token.functions.balanceOf(chain.alice.address).call() == 70
    assert token.functions.balanceOf(chain.bob.address).call() == 30


def test_transfer_to_oneself_changes_nothing(chain: Chain, token: Contract) -> None:
    chain.transact(chain.bob, token.functions.mint(chain.alice.address, 100))
    chain.transact(chain.alice, token.functions.transfer(chain.alice.address, 100))
    assert token.functions.balanceOf(chain.alice.address).call() == 100


def test_transfer_of_too_much_or_to_nobody_reverts(chain: Chain, token: Contract) -> None:
    chain.transact(chain.bob, token.functions.mint(chain.alice.address, 100))
    with pytest.raises(ContractLogicError, match="exceeds balance"):
        token.functions.transfer(chain.bob.address, 101).call({"from": chain.alice.address})
    with pytest.raises(ContractLogicError, match="zero address"):
        token.functions.transfer(ZERO_ADDRESS, 1).call({"from": chain.alice.address})


def test_transfer_from_spends_the_allowance(chain: Chain, token: Contract) -> None:
    chain.transact(chain.bob, token.functions.mint(chain.alice.address, 100))
    receipt = chain.transact(chain.alice, token.functions.approve(chain.bob.address, 50))
    assert chain.events(token, "Approval", receipt) == [
        {"owner": chain.alice.address, "spender": chain.bob.address, "value": 50}
    ]
    chain.transact(chain.bob, token.functions.transferFrom(chain.alice.address, chain.carol.address, 20))
    assert token.functions.allowance(chain.alice.address, chain.bob.address).call() == 30
    assert token.functions.balanceOf(chain.carol.address).call() == 20
    with pytest.raises(ContractLogicError, match="insufficient allowance"):
        token.functions.transferFrom(chain.alice.address, chain.carol.address, 31).call({"from": chain.bob.address})


def test_an_unlimited_allowance_is_not_spent(chain: Chain, token: Contract) -> None:
    chain.transact(chain.bob, token.functions.mint(chain.alice.address, 100))
    chain.transact(chain.alice, token.functions.approve(chain.bob.address, MAX))
    chain.transact(chain.bob, token.functions.transferFrom(chain.alice.address, chain.carol.address, 20))
    assert token.functions.allowance(chain.alice.address, chain.bob.address).call() == MAX


def test_burn_takes_tokens_out_of_the_supply(chain: Chain, token: Contract) -> None:
    chain.transact(chain.bob, token.functions.mint(chain.alice.address, 100))
    receipt = chain.transact(chain.alice, token.functions.burn(40))
    assert chain.events(token, "Transfer", receipt) == [
        {"sender": chain.alice.address, "receiver": ZERO_ADDRESS, "value": 40}
    ]
    assert token.functions.totalSupply().call() == 60
    with pytest.raises(ContractLogicError, match="exceeds balance"):
        token.functions.burn(61).call({"from": chain.alice.address})


def test_burn_from_needs_and_spends_an_allowance(chain: Chain, token: Contract) -> None:
    chain.transact(chain.bob, token.functions.mint(chain.alice.address, 100))
    with pytest.raises(ContractLogicError, match="insufficient allowance"):
        token.functions.burnFrom(chain.alice.address, 1).call({"from": chain.bob.address})
    chain.transact(chain.alice, token.functions.approve(chain.bob.address, 10))
    chain.transact(chain.bob, token.functions.burnFrom(chain.alice.address, 10))
    assert token.functions.balanceOf(chain.alice.address).call() == 90
    assert token.functions.allowance(chain.alice.address, chain.bob.address).call() == 0


def test_the_deployed_samples_have_two_kinds_of_decimals_and_holders(chain: Chain, token: Contract) -> None:
    deployment = chain.devnet.deployment
    assert [(sample.symbol, sample.decimals) for sample in deployment.tokens] == [("CAP", 18), ("CUSD", 6)]
    for sample in deployment.tokens:
        contract = chain.contract(sample.address, token.abi)
        assert contract.functions.symbol().call() == sample.symbol
        assert contract.functions.decimals().call() == sample.decimals
        assert contract.functions.balanceOf(deployment.accounts[9].address).call() >= 10_000 * 10**sample.decimals
