"""SamplePriceFeed on the real chain: Chainlink's AggregatorV3Interface, always fresh, settable by anyone."""

from __future__ import annotations

import time

import pytest
from web3.contract import Contract
from web3.exceptions import ContractLogicError

from capstan.devnet.artifacts import load_contract
from tests.contracts.chain import Chain


@pytest.fixture
def feed(chain: Chain) -> Contract:
    return chain.deploy_sample("SamplePriceFeed", "ABC / USD", 123)


def test_describes_itself(feed: Contract) -> None:
    assert feed.functions.description().call() == "ABC / USD"
    assert feed.functions.decimals().call() == 8
    assert feed.functions.version().call() == 1


def test_the_newest_answer_is_never_stale(chain: Chain, feed: Contract) -> None:
    first = feed.functions.latestRoundData().call()
    chain.devnet.wait_for_next_block()
    chain.devnet.wait_for_next_block()
    round_id, answer, started_at, updated_at, answered_in = feed.functions.latestRoundData().call()
    assert (round_id, answer, answered_in) == (1, 123, 1)
    assert started_at == first[2]
    assert updated_at > first[3]
    assert abs(updated_at - time.time()) <= 3


def test_anyone_sets_an_answer_and_old_rounds_stay(chain: Chain, feed: Contract) -> None:
    receipt = chain.transact(chain.bob, feed.functions.set_answer(-5))
    assert chain.events(feed, "AnswerUpdated", receipt)[0]["current"] == -5
    assert feed.functions.latestRoundData().call()[:2] == [2, -5]
    assert feed.functions.latestAnswer().call() == -5
    assert feed.functions.getRoundData(1).call()[:2] == [1, 123]
    with pytest.raises(ContractLogicError, match="No data present"):
        feed.functions.getRoundData(3).call()


def test_the_deployed_feeds_price_the_coin_and_the_tokens(chain: Chain) -> None:
    deployment = chain.devnet.deployment
    abi = load_contract("SamplePriceFeed").abi
    answers = {}
    for feed in deployment.price_feeds:
        contract = chain.contract(feed.address, abi)
        assert contract.functions.description().call() == feed.description
        assert contract.functions.decimals().call() == feed.decimals
        answers[feed.description] = contract.functions.getRoundData(1).call()[1]
    assert answers == {"ETH / USD": 2500 * 10**8, "CAP / USD": 125_000_000, "CUSD / USD": 10**8}
    assert [feed.token for feed in deployment.price_feeds] == [None, *(token.address for token in deployment.tokens)]
