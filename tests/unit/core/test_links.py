"""The header Link keeps what the client asked for and adds what the next page needs."""

from capstan.core.links import next_link


def test_the_next_page_keeps_the_rest_of_the_query() -> None:
    link = next_link("/v1/things", "limit=5&page=2&network=devnet", {"page": 3, "to_block": 17})
    assert link == '</v1/things?limit=5&network=devnet&page=3&to_block=17>; rel="next"'


def test_values_are_escaped() -> None:
    assert (
        next_link("/v1/things", "network=a%26b%3E", {"page": 2}) == '</v1/things?network=a%26b%3E&page=2>; rel="next"'
    )
