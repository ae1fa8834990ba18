"""The transfer paths of a running service, on the real development chain, indexed in full and on demand."""

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from capstan.core.hexes import to_checksum_address
from capstan.devnet.install import NodeProject
from tests.support.devnet import NEVER, EvmDevnet, running_devnet, wait_until
from tests.support.http import assert_error, assert_standard_headers
from tests.support.index_node import call_data
from tests.support.service import Service, run_json

ZERO = "0x" + "00" * 20
_SECONDS = 20.0


class Api:
    """One service with a key."""

    def __init__(self, service: Service, key: str) -> None:
        self.service = service
        self._headers = {"X-API-Key": key}

    def get(self, path: str, *, headers: dict[str, str] | None = None, **query: Any) -> httpx.Response:
        return httpx.get(
            self.service.base_url + path,
            params=query or None,
            headers={**self._headers, **(headers or {})},
            timeout=_SECONDS,
        )

    def wait_for(self, path: str, total: int, **query: Any) -> httpx.Response:
        """The answer, once it has so many entries."""
        wait_until(lambda: self.get(path, **query).json().get("total") == total, _SECONDS, f"{total} at {path}")
        return self.get(path, **query)

    def wait_until_complete(self, path: str) -> None:
        wait_until(lambda: self.get(path).headers["x-index-complete"] == "true", _SECONDS, f"all history for {path}")


@pytest.fixture(scope="module")
def holder(evm_devnet: EvmDevnet) -> str:
    """An address that has received three tokens before any service runs."""
    address = to_checksum_address(secrets.token_bytes(20))
    mint(evm_devnet, address, 5)
    return address


def mint(devnet: EvmDevnet, to: str, number: int) -> list[dict[str, Any]]:
    """An ERC-20, an ERC-721 and an ERC-1155 for an address; returns the receipts."""
    account = devnet.deployment.accounts[14]
    erc721, erc1155 = (each.address for each in devnet.deployment.nfts)
    token_id = int.from_bytes(secrets.token_bytes(31)) + 10
    calls = [
        (devnet.deployment.tokens[0].address, call_data("mint(address,uint256)", to, number)),
        (erc721, call_data("mint(address,uint256)", to, token_id)),
        (erc1155, call_data("mint(address,uint256,uint256)", to, token_id, number)),
    ]
    receipts = [devnet.send(account, contract, data=data) for contract, data in calls]
    assert {receipt["status"] for receipt in receipts} == {"0x1"}
    return receipts


def serve(mode: str, devnet: EvmDevnet, directory: Path) -> Iterator[Api]:
    data = str(directory / "data")
    key = run_json("keys", "create", "--plan", "enterprise", "--mode", "test", "--data-dir", data)["key"]
    environment = {
        "CAPSTAN_MODE": "development",
        "CAPSTAN_LOG__ACCESS": "false",
        "CAPSTAN_INDEX__WAIT_SECONDS": "15",
        "CAPSTAN_NETWORKS": f'{{"ethereum/devnet" = {{upstreams = ["{devnet.url}"], index = "{mode}"}}}}',
    }
    service = Service(["--data-dir", data], environment, directory)
    try:
        yield Api(service, key)
        # Stopped and not killed, so that the next service need not wait for its lease.
        assert service.stop() == 0
    finally:
        service.kill()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet, holder: str) -> Iterator[Api]:
    yield from serve("auto", evm_devnet, tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def on_demand(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet, holder: str) -> Iterator[Api]:
    yield from serve("on_demand", evm_devnet, tmp_path_factory.mktemp("demand"))


@pytest.fixture(params=["full", "on_demand"])
def api(request: pytest.FixtureRequest) -> Api:
    found: Api = request.getfixturevalue(request.param)
    return found


def test_history_from_before_the_service_is_there(api: Api, holder: str, evm_devnet: EvmDevnet) -> None:
    answer = api.get(f"/tokens/ethereum/transfers/{holder.lower()}")
    assert_standard_headers(answer)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert answer.headers["x-index-complete"] == "true"
    assert (body["address"], body["chain"], body["page"], body["total"]) == (holder.lower(), "ethereum", 1, 1)
    (transfer,) = body["transfers"]
    block = evm_devnet.call("eth_getBlockByNumber", hex(transfer["block_number"]), False)
    (log,) = evm_devnet.call("eth_getTransactionReceipt", transfer["tx_hash"])["logs"]
    assert transfer == {
        "contract": evm_devnet.deployment.tokens[0].address,
        "standard": "ERC20",
        "from": ZERO,
        "to": holder,
        "value": "5",
        "tx_hash": log["transactionHash"],
        "log_index": int(log["logIndex"], 16),
        "block_number": int(log["blockNumber"], 16),
        "block_hash": block["hash"],
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(block["timestamp"], 16))),
    }
    nfts = api.get(f"/nfts/ethereum/transfers/{holder}").json()
    assert [(item["standard"], item["quantity"], item["from"]) for item in nfts["transfers"]] == [
        ("ERC1155", "5", ZERO),
        ("ERC721", "1", ZERO),
    ]
    assert len({item["token_id"] for item in nfts["transfers"]}) == 1


def test_new_transfers_come_first_and_pages_stay_as_they_are(api: Api, evm_devnet: EvmDevnet) -> None:
    address = to_checksum_address(secrets.token_bytes(20))
    path = f"/nfts/ethereum/transfers/{address}"
    assert api.get(path).json()["total"] == 0
    for number in range(3):
        mint(evm_devnet, address, number + 1)
    first = api.wait_for(path, 6, limit=4)
    places = [(item["block_number"], item["log_index"]) for item in first.json()["transfers"]]
    assert places == sorted(places, reverse=True)
    assert len(places) == 4
    link = first.headers["link"]
    assert link.endswith('; rel="next"')
    following = link[1 : link.index(">")]
    assert f"to_block={first.headers['x-index-block']}" in following
    # Newer transfers push nothing from one page to the next.
    mint(evm_devnet, address, 9)
    api.wait_for(path, 8)
    second = api.get(following.removeprefix("/v1"))
    assert second.json()["total"] == 6
    assert "link" not in second.headers
    together = [*first.json()["transfers"], *second.json()["transfers"]]
    assert len({(item["tx_hash"], item["log_index"]) for item in together}) == 6
    lowest = min(item["block_number"] for item in together)
    some = api.get(path, from_block=lowest, to_block=lowest).json()
    assert {item["block_number"] for item in some["transfers"]} == {lowest}


def test_an_answer_that_the_client_has_is_not_sent_again(api: Api, holder: str) -> None:
    path = f"/tokens/ethereum/transfers/{holder}"
    first = api.get(path)
    again = api.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["x-index-complete"] == "true"
    assert api.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("kind", ["tokens", "nfts"])
def test_what_is_wrong_with_a_request_is_named(full: Api, holder: str, kind: str) -> None:
    path = f"/{kind}/ethereum/transfers/{holder}"
    assert "page" in assert_error(full.get(path, page=0), 400, "invalid_request")
    assert "limit" in assert_error(full.get(path, limit=101), 400, "invalid_request")
    assert "from_block" in assert_error(full.get(path, from_block=-1), 400, "invalid_request")
    assert "address" in assert_error(full.get(f"/{kind}/ethereum/transfers/0x12"), 400, "invalid_request")
    assert_error(full.get(f"/{kind}/nochain/transfers/{holder}"), 404, "not_found")


def test_owned_nfts_and_collections_come_from_the_index(api: Api, holder: str, evm_devnet: EvmDevnet) -> None:
    owned = api.get(f"/nfts/ethereum/owned/{holder}")
    assert owned.status_code == 200, owned.text
    assert owned.headers["x-index-complete"] == "true"
    assert sorted(item["standard"] for item in owned.json()["nfts"]) == ["ERC1155", "ERC721"]
    contract = evm_devnet.deployment.nfts[0].address
    collection = api.get(f"/nfts/ethereum/collection/{contract}")
    assert collection.status_code == 200, collection.text
    assert collection.json()["num_owners"] >= 1


def test_a_reorganisation_takes_back_what_it_replaces(quiet_devnet: EvmDevnet, tmp_path: Path) -> None:
    """The real stream, the real index, and a chain that changes its mind."""
    holder, other = (to_checksum_address(secrets.token_bytes(20)) for _ in range(2))
    mint(quiet_devnet, holder, 1)
    for api in serve("auto", quiet_devnet, tmp_path):
        path = f"/nfts/ethereum/transfers/{holder}"
        api.wait_for(path, 2)
        snapshot = quiet_devnet.call("evm_snapshot")
        mint(quiet_devnet, holder, 2)
        mint(quiet_devnet, other, 2)
        api.wait_for(path, 4)
        assert quiet_devnet.call("evm_revert", snapshot)
        quiet_devnet.mine()
        api.wait_for(path, 2)
        api.wait_for(f"/nfts/ethereum/transfers/{other}", 0)
        owned = api.get(f"/nfts/ethereum/owned/{holder}")
        assert (owned.json()["total"], owned.headers["x-index-complete"]) == (2, "true")
        mint(quiet_devnet, other, 3)
        api.wait_for(f"/nfts/ethereum/owned/{other}", 2)
        assert int(api.get(path).headers["x-index-block"]) == quiet_devnet.block_number()


def test_a_development_chain_begun_anew_is_indexed_anew(
    quiet_devnet: EvmDevnet, node_project: NodeProject, tmp_path: Path
) -> None:
    """The data directory stays, the chain does not: nothing of the old one may be left."""
    holder = to_checksum_address(secrets.token_bytes(20))
    mint(quiet_devnet, holder, 1)
    quiet_devnet.mine(12)
    path = f"/nfts/ethereum/transfers/{holder}"
    for api in serve("auto", quiet_devnet, tmp_path):
        api.wait_for(path, 2)
    with running_devnet(node_project, block_time=NEVER) as fresh:
        for api in serve("auto", fresh, tmp_path):
            api.wait_for(path, 0)
            receipt = mint(fresh, holder, 1)[-1]
            found = api.wait_for(path, 2).json()["transfers"]
            assert found[0]["tx_hash"] == receipt["transactionHash"]
            api.wait_until_complete(path)
            owned = api.get(f"/nfts/ethereum/owned/{holder}").json()
            assert owned["total"] == 2
