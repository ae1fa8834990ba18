"""The bounded memory: what is used stays, what is not goes, and it never holds more than twice its bound."""

from capstan.core.memo import Memo


def by_ten(max_bytes: int) -> Memo[str, int]:
    return Memo(max_bytes, lambda _key, _value: 10)


def test_what_was_put_is_found_and_what_was_not_is_not() -> None:
    memo = by_ten(1000)
    memo.put("a", 0)
    assert memo.get("a") == 0
    assert memo.get("b") is None


def test_it_holds_no_more_than_twice_its_bound() -> None:
    memo = by_ten(100)
    for number in range(10_000):
        memo.put(str(number), number)
        assert len(memo) * 10 <= 2 * 100 + 10
    assert memo.get("9999") == 9999
    assert memo.get("0") is None


def test_what_is_used_again_and_again_is_not_forgotten() -> None:
    memo = by_ten(100)
    memo.put("used", 1)
    for number in range(1000):
        memo.put(str(number), number)
        assert memo.get("used") == 1


def test_clear_forgets_the_younger_and_the_older() -> None:
    memo = by_ten(50)
    for number in range(8):
        memo.put(str(number), number)
    memo.clear()
    assert len(memo) == 0
    assert memo.get("7") is None
