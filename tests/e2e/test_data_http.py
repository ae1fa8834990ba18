"""Tokens and NFTs over HTTP: paths, headers, pages, refusals."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import msgspec
import pytest

from capstan.devnet.artifacts import call_data
from tests.support import canned
from tests.support.canned import Action
from tests.support.data import network_settings
from tests.support.devnet import EvmDevnet, wait_until
from tests.support.http import assert_error, assert_standard_headers
from tests.support.service import Service, run_json


class Running:
    """A service on the development chain, and keys for it."""

    def __init__(self, service: Service, key: str, narrow_key: str, devnet: EvmDevnet) -> None:
        self.service = service
        self.key = key
        self.narrow_key = narrow_key
        self.devnet = devnet

    def get(self, path: str, **headers: str) -> httpx.Response:
        """One request with the key."""
        url = self.service.base_url + path
        return httpx.get(url, headers={"X-API-Key": self.key, **headers}, timeout=30)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("data")
    data = str(directory / "data")
    key = run_json("keys", "create", "--plan", "enterprise", "--mode", "test", "--data-dir", data)["key"]
    narrow = run_json("keys", "create", "--mode", "test", "--scope", "rpc:read", "--data-dir", data)["key"]
    values = network_settings(evm_devnet.deployment, evm_devnet.url)
    network = {name.removeprefix("networks.ethereum/devnet."): value for name, value in values.items()}
    environment = {
        "CAPSTAN_MODE": "development",
        "CAPSTAN_NFTS__IPFS_GATEWAYS": "[]",
        "CAPSTAN_NETWORKS": msgspec.json.encode({"ethereum/devnet": network}).decode(),
    }
    service = Service(["--data-dir", data], environment, directory)
    try:
        yield Running(service, key, narrow, evm_devnet)
    finally:
        service.kill()


def paths(devnet: EvmDevnet) -> dict[str, str]:
    """One good path of each kind."""
    token, nft = devnet.deployment.tokens[0].address, devnet.deployment.nfts[0].address
    holder = devnet.deployment.accounts[0].address
    return {
        "balances": f"/tokens/ethereum/balances/{holder}",
        "token": f"/tokens/ethereum/metadata/{token}",
        "nft": f"/nfts/ethereum/metadata/{nft}/2",
        "collection": f"/nfts/ethereum/collection/{nft}",
        "owned": f"/nfts/ethereum/owned/{holder}",
    }


KINDS = ("balances", "token", "nft", "collection", "owned")


@pytest.mark.parametrize("kind", KINDS)
def test_every_path_answers_with_coverage_and_a_tag(running: Running, kind: str) -> None:
    answer = running.get(paths(running.devnet)[kind])
    assert answer.status_code == 200, answer.text
    assert_standard_headers(answer)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-index-block"].isdigit()
    assert answer.headers["x-index-complete"] in ("true", "false")
    assert answer.headers["etag"].startswith('"')


@pytest.mark.parametrize("kind", ["token", "nft"])
def test_answer_that_the_caller_has_is_not_sent_again(running: Running, kind: str) -> None:
    path = paths(running.devnet)[kind]
    first = running.get(path)
    again = running.get(path, **{"If-None-Match": f'"other", {first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert_standard_headers(again)
    assert again.headers["etag"] == first.headers["etag"]
    assert running.get(path, **{"If-None-Match": '"other"'}).status_code == 200


def test_balances_of_the_samples(running: Running) -> None:
    cap, cusd = running.devnet.deployment.tokens
    holder = running.devnet.deployment.accounts[7].address
    answer = running.get(f"/tokens/ethereum/balances/{holder.upper().replace('0X', '0x')}")
    found = answer.json()
    assert found["address"] == holder.upper().replace("0X", "0x"), "as the request spelled it"
    assert [item["contract"] for item in found["tokens"]] == [cap.address, cusd.address]
    assert [item["usd_value"] for item in found["tokens"]] == ["12500", "10000"]
    assert answer.headers["x-index-complete"] == "true"


def test_owned_of_the_samples(running: Running) -> None:
    unique, shared = running.devnet.deployment.nfts
    holder = running.devnet.deployment.accounts[2].address
    found = running.get(f"/nfts/ethereum/owned/{holder}").json()
    owned = {(item["contract"], item["token_id"]): item for item in found["nfts"]}
    assert set(owned) == {(unique.address, "5"), (unique.address, "6"), (shared.address, "1")}
    assert owned[unique.address, "6"]["name"] == "Capstan Sample 6"
    assert owned[shared.address, "1"]["collection_name"] == "Capstan Sample Items"
    collection = running.get(f"/nfts/ethereum/collection/{shared.address}").json()
    assert (collection["total_supply"], collection["num_owners"]) == (2, 3)
    assert running.get(f"/nfts/ethereum/metadata/{shared.address}/1").json()["owner"] is None
    assert running.get(f"/nfts/ethereum/metadata/{shared.address}/2").json()["owner"] == (
        running.devnet.deployment.accounts[0].address
    )


def test_what_was_minted_is_seen_at_once(running: Running) -> None:
    minter = running.devnet.deployment.accounts[16]
    holder = "0x" + "c0" * 20
    token, nft = running.devnet.deployment.tokens[1].address, running.devnet.deployment.nfts[0].address
    arguments = holder[2:].rjust(64, "0")
    for contract, number in ((token, 1_500_000), (nft, 4710)):
        data = "0x40c10f19" + arguments + f"{number:064x}"
        assert running.devnet.send(minter, contract, data=data)["status"] == "0x1"
    tokens = running.get(f"/tokens/ethereum/balances/{holder}").json()["tokens"]
    assert [(item["contract"], item["formatted_balance"]) for item in tokens] == [(token, "1.5")]
    owned = running.get(f"/nfts/ethereum/owned/{holder}").json()
    assert [(item["contract"], item["token_id"]) for item in owned["nfts"]] == [(nft, "4710")]


class Documents:
    """A web server in a thread that serves one JSON document at every path."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                body = json.dumps(outer.document).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join(30)
        self._server.server_close()


@pytest.fixture
def documents() -> Iterator[Documents]:
    served = Documents()
    yield served
    served.close()


@pytest.mark.parametrize(
    ("announcement", "others_too"),
    [
        (canned.Emits("MetadataUpdate(uint256)", (7,)), False),
        (canned.Emits("BatchMetadataUpdate(uint256,uint256)", (5, 7)), False),
        (canned.Emits("URI(string,uint256)", (32, 0), (7,)), False),
        (canned.Emits("Upgraded(address)", indexed=(1,)), True),
    ],
)
def test_announced_change_of_metadata_is_fetched(
    running: Running, documents: Documents, announcement: canned.Emits, others_too: bool
) -> None:
    """An event on the chain, through the stream and the index, to the document that is shown."""
    account = running.devnet.deployment.accounts[16]
    answers: dict[str, Action] = {
        **canned.supports(canned.ERC721),
        "tokenURI(uint256)": canned.text(documents.url),
        "ownerOf(uint256)": canned.address(account.address),
        "announce()": announcement,
    }
    contract = canned.deploy(running.devnet, account, canned.canned(answers))
    paths_of = {number: f"/nfts/ethereum/metadata/{contract}/{number}" for number in (7, 8)}
    documents.document = {"name": "before"}
    assert [running.get(path).json()["name"] for path in paths_of.values()] == ["before", "before"]
    documents.document = {"name": "after"}
    assert running.get(paths_of[7]).json()["name"] == "before"
    assert documents.asked == 2
    assert running.devnet.send(account, contract, data=call_data("announce()"))["status"] == "0x1"
    wait_until(lambda: running.get(paths_of[7]).json()["name"] == "after", 20, "the changed document")
    assert running.get(paths_of[8]).json()["name"] == ("after" if others_too else "before")
    assert documents.asked == (4 if others_too else 3)


def test_upgraded_token_is_read_again(running: Running) -> None:
    """Names are kept for a day; a proxy that says it was upgraded is asked anew at once."""
    account = running.devnet.deployment.accounts[16]
    holder = "0x" + "7e" * 20
    answers: dict[str, Action] = {
        "symbol()": canned.text("OLD"),
        "decimals()": canned.word(2),
        "balanceOf(address)": canned.word(5),
        "send()": canned.Emits("Transfer(address,address,uint256)", (5,), (0, int(holder, 16))),
        "announce()": canned.Emits("Upgraded(address)", (), (1,)),
    }
    contract, renewed = (
        canned.deploy(running.devnet, account, canned.canned({**answers, "symbol()": canned.text(symbol)}))
        for symbol in ("OLD", "NEW")
    )

    def symbols() -> list[str]:
        return [item["symbol"] for item in running.get(f"/tokens/ethereum/balances/{holder}").json()["tokens"]]

    assert running.devnet.send(account, contract, data=call_data("send()"))["status"] == "0x1"
    wait_until(lambda: symbols() == ["OLD"], 30, "the token in the list")
    running.devnet.call("hardhat_setCode", contract, running.devnet.call("eth_getCode", renewed, "latest"))
    assert running.devnet.send(account, contract, data=call_data("send()"))["status"] == "0x1"
    assert symbols() == ["OLD"], "nobody said that it changed"
    assert running.devnet.send(account, contract, data=call_data("announce()"))["status"] == "0x1"
    wait_until(lambda: symbols() == ["NEW"], 30, "the name after the upgrade")


@pytest.mark.parametrize("kind", KINDS)
def test_scope_and_key_are_needed(running: Running, kind: str) -> None:
    url = running.service.base_url + paths(running.devnet)[kind]
    assert_error(httpx.get(url, timeout=20), 401, "unauthorized")
    refused = httpx.get(url, headers={"X-API-Key": running.narrow_key}, timeout=20)
    assert "data:read" in assert_error(refused, 403, "forbidden")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/tokens/ethereum/balances/0x12", 400, "invalid_request"),
        ("/tokens/ethereum/balances/name.eth", 400, "invalid_request"),
        ("/tokens/ethereum/metadata/0x" + "g" * 40, 400, "invalid_request"),
        ("/tokens/ethereum/metadata/0x" + "01" * 20, 404, "not_found"),
        ("/nfts/ethereum/collection/0x" + "01" * 20, 404, "not_found"),
        ("/nfts/ethereum/metadata/0x" + "01" * 20 + "/1", 404, "not_found"),
        ("/nfts/ethereum/metadata/0x" + "01" * 20 + "/-1", 400, "invalid_request"),
        ("/nfts/ethereum/owned/0x", 400, "invalid_request"),
        ("/tokens/nowhere/balances/0x" + "01" * 20, 404, "not_found"),
        ("/tokens/ethereum/balances/0x" + "01" * 20 + "?network=mainnet", 403, "forbidden"),
        ("/tokens/ethereum/balances/0x" + "01" * 20 + "?page=0", 400, "invalid_request"),
        ("/tokens/ethereum/balances/0x" + "01" * 20 + "?limit=101", 400, "invalid_request"),
        ("/nfts/ethereum/owned/0x" + "01" * 20 + "?limit=0", 400, "invalid_request"),
        ("/nfts/ethereum/owned/0x" + "01" * 20 + "?page=x", 400, "invalid_request"),
    ],
)
def test_refusals(running: Running, path: str, status: int, code: str) -> None:
    assert_error(running.get(path), status, code)


def test_address_without_anything_has_empty_lists(running: Running) -> None:
    nobody = "0x" + "0d" * 20
    expected: dict[str, Any] = {"address": nobody, "chain": "ethereum", "page": 3, "total": 0}
    assert running.get(f"/tokens/ethereum/balances/{nobody}?page=3").json() == {**expected, "tokens": []}
    assert running.get(f"/nfts/ethereum/owned/{nobody}?page=3").json() == {**expected, "nfts": []}
