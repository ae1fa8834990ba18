"""Smart wallets over HTTP on a real chain: creating, reading, listing, and everything that is refused."""

import concurrent.futures
import json
from collections.abc import Iterator
from typing import Any

import pytest
from eth_abi.abi import encode
from eth_account import Account
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from capstan.userops.versions import Version
from capstan.wallets.factories import computed_address, known_factories
from tests.support.devnet import EvmDevnet
from tests.support.http import assert_error, assert_standard_headers
from tests.support.wallets import Wallets, random_salt, serving_wallets

OWNER = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"


@pytest.fixture(scope="module")
def wallets(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet) -> Iterator[Wallets]:
    with serving_wallets(tmp_path_factory.mktemp("wallets"), evm_devnet) as running:
        yield running


def factory_address(devnet: EvmDevnet, version: Version, owner: str, salt: int) -> str:
    """What the factory on the chain says."""
    data = keccak(b"getAddress(address,uint256)")[:4] + encode(["address", "uint256"], [owner, salt])
    factory = devnet.deployment.factories[version]
    found: str = devnet.call("eth_call", {"to": factory, "data": "0x" + data.hex()}, "latest")
    return to_checksum_address("0x" + found[-40:])


@pytest.mark.parametrize("version", ["0.6", "0.7", "0.8"])
@pytest.mark.parametrize("salt", [None, "0", "5", "0x1f", "a text", "", "0x", str(2**256 - 1), str(2**256), "007"])
def test_the_address_is_the_factorys(wallets: Wallets, version: Version, salt: str | None) -> None:
    owner = Account.create().address
    body = {"owner": owner, "entry_point_version": version, **({} if salt is None else {"salt": salt})}
    answer = wallets.create(**body)
    assert answer.status_code == 201, answer.text
    assert_standard_headers(answer)
    wallet = answer.json()
    numbers = {None: 0, "0": 0, "5": 5, "0x1f": 31, str(2**256 - 1): 2**256 - 1, "007": 7}
    number = numbers[salt] if salt in numbers else int.from_bytes(keccak((salt or "").encode()), "big")
    deployment = wallets.devnet.deployment
    creation = keccak(b"createAccount(address,uint256)")[:4] + encode(["address", "uint256"], [owner, number])
    created_at = wallet.pop("created_at")
    assert wallet == {
        "address": factory_address(wallets.devnet, version, owner, number),
        "owner": owner,
        "chain": "ethereum",
        "network": "devnet",
        "status": "counterfactual",
        "factory": deployment.factories[version],
        "salt": hex(number),
        "entry_point": deployment.entry_points[version],
        "entry_point_version": version,
        "factory_data": "0x" + creation.hex(),
        "init_code": deployment.factories[version].lower() + creation.hex(),
    }
    assert created_at.endswith("Z")
    assert len(created_at) == len("2026-01-31T12:00:00Z")


@pytest.mark.parametrize("version", ["0.6", "0.7", "0.8"])
def test_what_is_known_of_a_factory_is_what_is_on_the_chain(evm_devnet: EvmDevnet, version: Version) -> None:
    """The data in `account_factories.json`: from it addresses are computed without asking a node."""
    factory = evm_devnet.deployment.factories[version]
    implementation, proxy_code = known_factories()[bytes.fromhex(factory[2:])]
    data = "0x" + keccak(b"accountImplementation()")[:4].hex()
    assert evm_devnet.call("eth_call", {"to": factory, "data": data}, "latest")[-40:] == implementation.hex()
    assert proxy_code.hex() in evm_devnet.call("eth_getCode", factory, "latest")
    for number in (0, 1, 2**255, 2**256 - 1):
        owner = Account.create().address
        computed = computed_address(bytes.fromhex(factory[2:]), bytes.fromhex(owner[2:]), number)
        assert computed is not None
        assert to_checksum_address(computed) == factory_address(evm_devnet, version, owner, number)


def test_the_newest_entry_point_is_the_default(wallets: Wallets) -> None:
    assert wallets.created()["entry_point_version"] == "0.8"


def test_creating_the_same_wallet_again_gives_the_same_body(wallets: Wallets) -> None:
    owner, salt = Account.create().address, random_salt()
    first = wallets.create(owner=owner, salt=salt)
    again = [
        wallets.create(owner=owner, salt=salt),
        wallets.create(owner=owner.lower(), salt=hex(int(salt))),
        wallets.create(owner=owner, salt=salt, network="devnet", entry_point_version="0.8", unknown=[1]),
    ]
    assert first.status_code == 201
    assert [answer.status_code for answer in again] == [200, 200, 200]
    assert all(answer.json() == first.json() for answer in again)
    other = wallets.create(owner=owner, salt=salt, entry_point_version="0.6")
    assert other.status_code == 201
    assert other.json()["address"] != first.json()["address"]


def test_a_wallet_of_an_older_entry_point_is_still_meant_without_a_version(wallets: Wallets) -> None:
    owner = Account.create().address
    first = wallets.created(owner, entry_point_version="0.7")
    again = wallets.create(owner=owner)
    assert (again.status_code, again.json()) == (200, first)


def test_two_requests_at_once_make_one_wallet(wallets: Wallets) -> None:
    own = wallets.with_key()
    owner = Account.create().address
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: own.create(owner=owner), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.text for answer in answers}) == 1
    assert own.page().json()["total"] == 1


def test_a_wallet_is_read_with_its_nonce(wallets: Wallets) -> None:
    created = wallets.created()
    found = wallets.wallet(created["address"])
    assert found == {**created, "nonce": 0}
    lower = wallets.wallet(created["address"].lower(), chain="ethereum", network="devnet")
    assert lower == {**found, "address": created["address"].lower()}


def test_the_owner_is_repeated_as_it_was_spelled(wallets: Wallets) -> None:
    owner = Account.create().address.lower()
    created = wallets.created(owner)
    assert created["owner"] == owner
    assert wallets.wallet(created["address"])["owner"] == owner


def test_the_newest_wallet_at_an_address_is_read(wallets: Wallets) -> None:
    created = wallets.created()
    assert_error(wallets.read(created["address"], chain="polygon"), 404, "not_found")
    assert wallets.wallet(created["address"], chain="ethereum")["address"] == created["address"]


def test_wallets_of_other_accounts_do_not_exist(wallets: Wallets) -> None:
    created = wallets.created()
    other = wallets.with_key()
    message = assert_error(other.read(created["address"]), 404, "not_found")
    assert created["address"] in message
    assert other.page().json() == {"wallets": [], "page": 1, "total": 0}
    again = other.create(owner=created["owner"])
    assert again.status_code == 201
    assert again.json()["address"] == created["address"]


def test_lists_have_pages_and_the_newest_first(wallets: Wallets) -> None:
    own = wallets.with_key("--plan", "growth")
    made = [own.created() for _ in range(7)]
    expected = [
        {name: each[name] for name in ("address", "owner", "chain", "network", "status", "created_at")}
        for each in reversed(made)
    ]
    assert own.page().json() == {"wallets": expected, "page": 1, "total": 7}
    assert own.page(page=2, limit=3).json() == {"wallets": expected[3:6], "page": 2, "total": 7}
    assert own.page(page=9, limit=100).json() == {"wallets": [], "page": 9, "total": 7}
    assert own.page(chain="ethereum").json()["total"] == 7
    assert own.page(chain="polygon").json()["total"] == 0
    assert own.page(network="devnet").json()["total"] == 7
    assert own.page(network="sepolia").json()["total"] == 0
    assert own.page(chain="ethereum", network="devnet").json()["total"] == 7


def test_the_plan_bounds_the_number_of_wallets(wallets: Wallets) -> None:
    account = wallets.new_account("--wallets", "2")
    own = wallets.with_key("--account", account)
    first, second = own.created(), own.created()
    message = assert_error(own.create(owner=OWNER), 403, "forbidden")
    assert "2 wallets" in message
    again = own.create(owner=first["owner"])
    assert (again.status_code, again.json()) == (200, first)
    assert own.page().json()["total"] == 2
    assert own.wallet(second["address"])["status"] == "counterfactual"


def test_the_scope_is_needed(wallets: Wallets) -> None:
    reader = wallets.with_key("--scope", "rpc:read")
    for answer in (reader.create(owner=OWNER), reader.read(OWNER), reader.page()):
        assert "wallets:manage" in assert_error(answer, 403, "forbidden")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"chain": "ethereum"}, "owner"),
        ({"owner": OWNER}, "chain"),
        ({"owner": None, "chain": "ethereum"}, "owner"),
        ({"owner": 5, "chain": "ethereum"}, "owner"),
        ({"owner": "", "chain": "ethereum"}, "owner"),
        ({"owner": OWNER[:-1], "chain": "ethereum"}, "owner"),
        ({"owner": OWNER + "0", "chain": "ethereum"}, "owner"),
        ({"owner": OWNER + "\n", "chain": "ethereum"}, "owner"),
        ({"owner": OWNER.replace("0x", ""), "chain": "ethereum"}, "owner"),
        ({"owner": "0x" + "0" * 40, "chain": "ethereum"}, "owner"),
        ({"owner": "vitalik.eth", "chain": "ethereum"}, "owner"),
        ({"owner": OWNER, "chain": 1}, "chain"),
        ({"owner": OWNER, "chain": "ethereum", "salt": 5}, "salt"),
        ({"owner": OWNER, "chain": "ethereum", "salt": ["5"]}, "salt"),
        ({"owner": OWNER, "chain": "ethereum", "network": 5}, "network"),
        ({"owner": OWNER, "chain": "ethereum", "entry_point_version": "0.5"}, "entry_point_version"),
    ],
)
def test_bad_bodies_are_refused_with_the_name_of_the_parameter(
    wallets: Wallets, body: dict[str, Any], named: str
) -> None:
    message = assert_error(wallets.post(json.dumps(body)), 400, "invalid_request")
    assert named in message


@pytest.mark.parametrize("content", ["", "[]", "null", "{", '"text"', '{"owner": }'])
def test_bodies_that_are_no_object_are_refused(wallets: Wallets, content: str) -> None:
    assert_error(wallets.post(content), 400, "invalid_request")


def test_a_salt_that_is_no_text_is_refused(wallets: Wallets) -> None:
    body = f'{{"owner": "{OWNER}", "chain": "ethereum", "salt": "\\ud800"}}'
    assert_error(wallets.post(body), 400, "invalid_request")


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"page": 0}, "page"),
        ({"page": -1}, "page"),
        ({"page": "x"}, "page"),
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"limit": "1.5"}, "limit"),
    ],
)
def test_bad_queries_are_refused_with_the_name_of_the_parameter(
    wallets: Wallets, query: dict[str, Any], named: str
) -> None:
    assert named in assert_error(wallets.page(**query), 400, "invalid_request")


def test_addresses_that_are_none_are_refused(wallets: Wallets) -> None:
    for address in ("0x12", "nothing", OWNER + "00", OWNER[2:]):
        assert "address" in assert_error(wallets.read(address), 400, "invalid_request")


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"chain": "nowhere"}, 404, "nowhere"),
        ({"chain": "ethereum", "network": "nowhere"}, 404, "nowhere"),
        ({"chain": "polygon"}, 404, "polygon/amoy"),
        ({"chain": "ethereum", "network": "mainnet"}, 403, "ethereum/mainnet"),
        ({"chain": "solana"}, 404, "solana"),
        ({"chain": "ethereum", "entry_point_version": "0.9"}, 404, "0.9"),
    ],
)
def test_networks_without_wallets_are_named(wallets: Wallets, body: dict[str, Any], status: int, named: str) -> None:
    answer = wallets.create(owner=OWNER, **body)
    assert named in assert_error(answer, status, "not_found" if status == 404 else "forbidden")


def test_unknown_chains_of_reads_are_named(wallets: Wallets) -> None:
    assert "nowhere" in assert_error(wallets.page(chain="nowhere"), 404, "not_found")
    assert "nowhere" in assert_error(wallets.read(OWNER, chain="nowhere"), 404, "not_found")
    assert "nowhere" in assert_error(wallets.page(network="nowhere"), 404, "not_found")
    assert "nowhere" in assert_error(wallets.page(chain="ethereum", network="nowhere"), 404, "not_found")
    assert_error(wallets.page(chain="ethereum", network="mainnet"), 403, "forbidden")


def test_a_network_without_factories_says_so(tmp_path: Any, evm_devnet: EvmDevnet) -> None:
    with serving_wallets(tmp_path, evm_devnet, factories={}) as bare:
        message = assert_error(bare.create(owner=OWNER), 404, "not_found")
        assert "no account factory" in message


def test_a_factory_that_is_not_there_gives_no_address(tmp_path: Any, evm_devnet: EvmDevnet) -> None:
    with serving_wallets(tmp_path, evm_devnet, factories={"0.7": OWNER}) as wrong:
        message = assert_error(wrong.create(owner=OWNER), 502, "upstream_error")
        assert OWNER in message
        assert wrong.page().json()["total"] == 0
