# pragma version 0.4.3
# pragma evm-version cancun
"""
@title SamplePriceFeed
@license Apache-2.0
@notice A price feed for the development chain with Chainlink's AggregatorV3Interface. Anyone may set the answer. The
        newest round always counts as updated now, so that readers which reject stale prices accept it.
"""

event AnswerUpdated:
    current: indexed(int256)
    roundId: indexed(uint256)
    updatedAt: uint256

struct Round:
    answer: int256
    started_at: uint256

decimals: public(constant(uint8)) = 8
version: public(constant(uint256)) = 1
description: public(String[64])
rounds: HashMap[uint80, Round]
latest_round: uint80


@deploy
def __init__(description_: String[64], answer: int256):
    self.description = description_
    self._new_round(answer)


@external
def set_answer(answer: int256):
    """
    @notice Start a new round with this answer. For anyone: it is a sample.
    """
    self._new_round(answer)


@external
@view
def latestAnswer() -> int256:
    return self.rounds[self.latest_round].answer


@external
@view
def latestRoundData() -> (uint80, int256, uint256, uint256, uint80):
    """
    @return roundId, answer, startedAt, updatedAt, answeredInRound
    """
    return self._round(self.latest_round)


@external
@view
def getRoundData(roundId: uint80) -> (uint80, int256, uint256, uint256, uint80):
    return self._round(roundId)


@internal
def _new_round(answer: int256):
    self.latest_round += 1
    self.rounds[self.latest_round] = Round(answer=answer, started_at=block.timestamp)
    log AnswerUpdated(current=answer, roundId=convert(self.latest_round, uint256), updatedAt=block.timestamp)


@internal
@view
def _round(number: uint80) -> (uint80, int256, uint256, uint256, uint80):
    started_at: uint256 = self.rounds[number].started_at
    assert started_at != 0, "No data present"
    updated_at: uint256 = started_at
    if number == self.latest_round:
        updated_at = block.timestamp
    return number, self.rounds[number].answer, started_at, updated_at, number
