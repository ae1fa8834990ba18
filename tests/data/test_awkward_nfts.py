"""NFT contracts that answer badly, and metadata that is to be found at bad places."""

import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from capstan.core.errors import NotFound
from capstan.index.models import Standard
from tests.support import canned
from tests.support.canned import SUPPORTS, Action, Floods, Loops, Returns, Reverts, deploy, supports, text, word
from tests.support.data import BOUNDED_SECONDS, DataSetup, data_services
from tests.support.devnet import EvmDevnet
from tests.support.web import MEBIBYTE, MP4, PNG, SVG, MetadataServer

OWNER = "0x" + "Ab" * 20
DOCUMENT = {
    "name": "One",
    "description": "First\nof many",
    "image": "ipfs://QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKnsH7",
}
CID = "bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354"


def erc721(uri: Action, **changes: Action) -> bytes:
    """The code of an ERC-721 contract whose tokens all have this URI."""
    answers: dict[str, Action] = {
        **supports(canned.ERC721),
        "tokenURI(uint256)": uri,
        "ownerOf(uint256)": canned.address(OWNER),
        "name()": text("Awkward"),
    }
    return canned.canned({**answers, **changes})


class Bench:
    """The services, a web server, and a way to deploy."""

    def __init__(self, setup: DataSetup, server: MetadataServer, devnet: EvmDevnet) -> None:
        self.setup = setup
        self.server = server
        self._devnet = devnet

    def deploy(self, code: bytes) -> str:
        """The address of a contract with this creation code."""
        return deploy(self._devnet, self._devnet.deployment.accounts[13], code)

    async def of_uri(self, uri: str | bytes) -> dict[str, Any]:
        """The metadata of an ERC-721 token with this URI."""
        return await self.setup.nft(self.deploy(erc721(text(uri))), 7)

    async def served(self, path: str, document: Any) -> dict[str, Any]:
        """The metadata of a token whose document is this."""
        self.server.documents[path] = document
        return await self.of_uri(self.server.url + path)


@pytest.fixture
async def bench(quiet_devnet: EvmDevnet, tmp_path: Path) -> AsyncIterator[Bench]:
    """In development mode, which alone may ask loopback addresses."""
    async with MetadataServer() as server:
        settings = {
            "mode": "development",
            "nfts.ipfs_gateways": [f"{server.url}/first", f"{server.url}/second"],
            "nfts.arweave_gateways": [f"{server.url}/arweave"],
            "nfts.fetch_seconds": 4,
        }
        async with data_services(quiet_devnet.url, quiet_devnet.deployment, tmp_path, settings=settings) as setup:
            yield Bench(setup, server, quiet_devnet)


def is_without_document(found: dict[str, Any]) -> bool:
    """Whether the contract is told of and its document is not."""
    assert found["owner"].lower() == OWNER.lower()
    assert found["standard"] == "ERC721"
    fields = ("name", "description", "image_url", "image_gateway_url")
    return all(found[field] is None for field in fields) and found["traits"] == []


async def test_document_over_http(bench: Bench) -> None:
    found = await bench.served("/1.json", {**DOCUMENT, "attributes": [{"trait_type": "Level", "value": 12.50}]})
    assert (found["name"], found["description"]) == ("One", "First\nof many")
    assert found["image_url"] == DOCUMENT["image"]
    cid = DOCUMENT["image"].removeprefix("ipfs://")
    assert found["image_gateway_url"] == f"{bench.server.url}/first/ipfs/{cid}"
    assert found["traits"] == [{"trait_type": "Level", "value": "12.5"}]


@pytest.mark.parametrize(
    "uri",
    [
        f"ipfs://{CID}/a b#1.json",
        f"ipfs://ipfs/{CID}/a b#1.json",
        f"{CID}/a b#1.json",
        f"/ipfs/{CID}/a b#1.json",
    ],
)
async def test_ipfs_goes_to_the_gateways_and_falls_back(bench: Bench, uri: str) -> None:
    bench.server.documents[f"/second/ipfs/{CID}/a%20b%231.json"] = DOCUMENT
    assert (await bench.of_uri(uri))["name"] == "One"
    assert bench.server.asked[0].startswith("/first/ipfs/")


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        (f"https://gateway.example/ipfs/{CID}/1?token=x", f"/first/ipfs/{CID}/1"),
        (f"https://{CID}.ipfs.gateway.example/1", f"/first/ipfs/{CID}/1"),
        ("ipns://docs.example/1", "/first/ipns/docs.example/1"),
        ("ar://" + "x" * 43 + "/1.json", "/arweave/" + "x" * 43 + "/1.json"),
    ],
)
async def test_other_addresses_are_asked_of_our_gateways(bench: Bench, uri: str, path: str) -> None:
    bench.server.documents[path] = DOCUMENT
    assert (await bench.of_uri(uri))["name"] == "One"


@pytest.mark.parametrize(
    "uri",
    [
        "data:application/json;base64," + base64.b64encode(json.dumps(DOCUMENT).encode()).decode(),
        "data:application/json;base64," + base64.b64encode(json.dumps(DOCUMENT).encode()).decode().rstrip("="),
        "data:application/json;utf8," + json.dumps(DOCUMENT),
        "data:application/json;charset=utf-8," + json.dumps(DOCUMENT).replace('"', "%22").replace(" ", "%20"),
        "data:," + json.dumps(DOCUMENT),
        json.dumps(DOCUMENT),
    ],
)
async def test_document_inside_the_uri(bench: Bench, uri: str) -> None:
    found = await bench.of_uri(uri)
    assert (found["name"], found["image_url"]) == ("One", DOCUMENT["image"])
    assert bench.server.asked == []


@pytest.mark.parametrize(("body", "kind"), [(PNG, "image/png"), (SVG, "text/plain"), (MP4, ""), (b"?", "video/webm")])
async def test_picture_in_place_of_a_document(bench: Bench, body: bytes, kind: str) -> None:
    found = await bench.served("/picture", (body, kind))
    assert (found["name"], found["image_url"]) == (None, f"{bench.server.url}/picture")
    assert found["image_gateway_url"] == found["image_url"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[1, 2]", b'"text"', b"null", b'{"name": NaN}', b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe\x00"],
)
async def test_what_is_no_document_leaves_null_fields(bench: Bench, body: bytes) -> None:
    assert is_without_document(await bench.served("/odd.json", body))


@pytest.mark.parametrize("path", ["/bad/loop", "/bad/endless", "/bad/slow", "/bad/error", "/bad/html", "/nothing"])
async def test_bad_server_leaves_null_fields_in_bounded_time(bench: Bench, path: str) -> None:
    started = time.monotonic()
    assert is_without_document(await bench.of_uri(bench.server.url + path))
    assert time.monotonic() - started < BOUNDED_SECONDS
    # The loop is followed three times; of the gigabyte little more is sent than is read.
    assert len(bench.server.asked) <= 4
    assert bench.server.sent_bytes < 64 * MEBIBYTE


@pytest.mark.parametrize(
    "uri",
    ["", "   ", "n/a", "javascript:alert(1)", "file:///etc/passwd", "ftp://host/1", "ipfs://", "ipfs://nonsense/1",
     "ar://short", "data:", "data:application/json;base64,@@@", "https://", "http://[", "//host/1", b"\xff\xff", "\0"],
)  # fmt: skip
async def test_uri_that_leads_nowhere(bench: Bench, uri: str | bytes) -> None:
    assert is_without_document(await bench.of_uri(uri))


async def test_failure_is_remembered_and_not_asked_again_at_once(bench: Bench) -> None:
    contract = bench.deploy(erc721(text(bench.server.url + "/late.json")))
    assert is_without_document(await bench.setup.nft(contract, 1))
    bench.server.documents["/late.json"] = DOCUMENT
    assert is_without_document(await bench.setup.nft(contract, 1))
    assert bench.server.asked == ["/late.json"]


async def test_id_stands_in_the_uri_and_in_the_document(bench: Bench) -> None:
    token_id = 2**255 + 10
    digits = f"{token_id:064x}"
    bench.server.documents[f"/{digits}.json"] = {"name": "Item {id}", "image": "https://example.com/{id}.png"}
    answers: dict[str, Action] = {**supports(canned.ERC1155), "uri(uint256)": text(bench.server.url + "/{id}.json")}
    contract = bench.deploy(canned.canned(answers))
    found = await bench.setup.nft(contract, token_id)
    assert (found["standard"], found["token_id"], found["owner"]) == ("ERC1155", str(token_id), None)
    assert found["name"] == f"Item {digits}"
    assert found["image_url"] == found["image_gateway_url"] == f"https://example.com/{digits}.png"


async def test_contract_of_both_standards_counts_as_erc721(bench: Bench) -> None:
    both = {**supports(canned.ERC721, canned.ERC1155), "tokenURI(uint256)": text(json.dumps(DOCUMENT))}
    contract = bench.deploy(canned.canned({**both, "ownerOf(uint256)": canned.address(OWNER)}))
    assert (await bench.setup.nft(contract, 1))["standard"] == "ERC721"
    assert (await bench.setup.collection(contract))["standard"] == "ERC721"


async def test_who_supports_everything_is_judged_by_transfers(bench: Bench) -> None:
    liar = bench.deploy(canned.canned({"uri(uint256)": text(json.dumps(DOCUMENT))}, word(1)))
    with pytest.raises(NotFound, match="neither"):
        await bench.setup.nft(liar, 1)
    bench.setup.index.hold(liar, 1, OWNER, standard=Standard.ERC1155)
    found = await bench.setup.nft(liar, 1)
    assert (found["standard"], found["name"], found["owner"].lower()) == ("ERC1155", "One", OWNER.lower())


async def test_contract_from_before_erc165_is_judged_by_transfers(bench: Bench) -> None:
    old = bench.deploy(canned.canned({"tokenURI(uint256)": text(json.dumps(DOCUMENT))}))
    with pytest.raises(NotFound, match="neither"):
        await bench.setup.collection(old)
    bench.setup.index.hold(old, 1, OWNER, standard=Standard.ERC721)
    found = await bench.setup.nft(old, 1)
    assert (found["standard"], found["owner"].lower(), found["name"]) == ("ERC721", OWNER.lower(), "One")


@pytest.mark.parametrize("uri", [Reverts(), Loops(), Floods(2_000_000), Returns(b""), Returns(b"\xff" * 64)])
async def test_bad_token_uri_leaves_null_fields(bench: Bench, uri: Action) -> None:
    assert is_without_document(await bench.setup.nft(bench.deploy(erc721(uri)), 1))


async def test_token_that_nobody_knows_is_a_404(bench: Bench) -> None:
    contract = bench.deploy(erc721(Reverts(), **{"ownerOf(uint256)": Reverts()}))
    with pytest.raises(NotFound, match="token 1 of this contract does not exist"):
        await bench.setup.nft(contract, 1)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (canned.canned({SUPPORTS: Loops()}), "neither"),
        (canned.canned({SUPPORTS: Floods(1_000_000)}), "neither"),
        (canned.canned({SUPPORTS: Returns(b"\x01")}), "neither"),
        # Any number but one is no yes.
        (canned.canned({SUPPORTS: word(2)}), "neither"),
        (canned.proxy("0x" + "00" * 19 + "99"), "neither"),
        # A contract that destroys itself while it is made: CALLER, SELFDESTRUCT.
        (b"\x33\xff", "no contract"),
    ],
)
async def test_what_is_no_collection_is_a_clear_404(bench: Bench, code: bytes, reason: str) -> None:
    contract = bench.deploy(code)
    with pytest.raises(NotFound, match=reason):
        await bench.setup.nft(contract, 1)
    with pytest.raises(NotFound, match=reason):
        await bench.setup.collection(contract)


async def test_proxy_that_leads_to_itself_is_a_clear_404(bench: Bench, quiet_devnet: EvmDevnet) -> None:
    address = "0x" + "5e1f" * 10
    quiet_devnet.call("hardhat_setCode", address, "0x" + canned.proxy(address)[9:].hex())
    quiet_devnet.mine()
    started = time.monotonic()
    with pytest.raises(NotFound, match="neither"):
        await bench.setup.nft(address, 1)
    with pytest.raises(NotFound, match="not an ERC-20"):
        await bench.setup.token(address)
    assert time.monotonic() - started < BOUNDED_SECONDS


@pytest.mark.parametrize("owner", [Returns(b"\xff" * 32), Returns(b"\x01" * 31), Returns(b""), word(0), Loops()])
async def test_owner_that_is_no_address_comes_from_transfers(bench: Bench, owner: Action) -> None:
    contract = bench.deploy(erc721(text(json.dumps(DOCUMENT)), **{"ownerOf(uint256)": owner}))
    found = await bench.setup.nft(contract, 1)
    assert (found["owner"], found["name"]) == (None, "One")
    bench.setup.index.hold(contract, 2, OWNER, standard=Standard.ERC721)
    assert (await bench.setup.nft(contract, 2))["owner"].lower() == OWNER.lower()


async def test_collection_that_says_nothing_sensible_has_null_fields(bench: Bench) -> None:
    changes: dict[str, Action] = {
        "name()": Loops(),
        "symbol()": Floods(2_000_000),
        "totalSupply()": Reverts(),
        "contractURI()": Loops(),
    }
    found = await bench.setup.collection(bench.deploy(erc721(Reverts(), **changes)))
    assert (found["name"], found["symbol"], found["description"], found["banner_url"]) == (None, None, None, None)
    assert (found["standard"], found["total_supply"], found["num_owners"]) == ("ERC721", 0, 0)


async def test_collection_document(bench: Bench) -> None:
    bench.server.documents["/collection.json"] = {
        "name": "Not used",
        "description": "All of them",
        "image": "https://example.com/logo.png",
        "banner_image": "https://example.com/banner.png",
    }
    changes = {"contractURI()": text(bench.server.url + "/collection.json"), "totalSupply()": word(2**200)}
    found = await bench.setup.collection(bench.deploy(erc721(Reverts(), **changes)))
    assert found["name"] == "Awkward"
    assert found["description"] == "All of them"
    assert (found["image_url"], found["banner_url"]) == (
        "https://example.com/logo.png",
        "https://example.com/banner.png",
    )
    assert found["total_supply"] is None, "a number that JSON clients cannot hold"


async def test_list_does_not_wait_for_slow_documents(bench: Bench) -> None:
    contract = bench.deploy(erc721(text(bench.server.url + "/bad/slow")))
    for token_id in range(20):
        bench.setup.index.hold(contract, token_id, OWNER, standard=Standard.ERC721)
    started = time.monotonic()
    found = await bench.setup.owned(OWNER)
    assert time.monotonic() - started < BOUNDED_SECONDS
    assert len(found["nfts"]) == 20
    assert {item["name"] for item in found["nfts"]} == {None}
    assert {item["collection_name"] for item in found["nfts"]} == {"Awkward"}


@pytest.mark.parametrize(
    "uri",
    ["http://127.0.0.1:{port}/1.json", "https://127.0.0.1:{port}/1.json", "https://localhost:{port}/1.json",
     "http://169.254.169.254/latest/meta-data", "https://169.254.169.254/latest/meta-data", "https://[::1]:{port}/1.json",
     "https://[64:ff9b::7f00:1]/1.json", "https://[64:ff9b::a9fe:a9fe]/1.json", "https://[::ffff:127.0.0.1]/1.json",
     "https://2130706433/1.json", "https://0x7f.1/1.json", "https://10.0.0.1/", "https://user:pass@127.0.0.1/"],
)  # fmt: skip
async def test_production_asks_no_address_of_our_own_network(quiet_devnet: EvmDevnet, tmp_path: Path, uri: str) -> None:
    async with MetadataServer() as server:
        server.documents["/1.json"] = DOCUMENT
        port = server.url.rpartition(":")[2]
        async with data_services(quiet_devnet.url, quiet_devnet.deployment, tmp_path) as setup:
            account = quiet_devnet.deployment.accounts[13]
            contract = deploy(quiet_devnet, account, erc721(text(uri.replace("{port}", port))))
            started = time.monotonic()
            assert is_without_document(await setup.nft(contract, 1))
            assert time.monotonic() - started < BOUNDED_SECONDS
        assert server.asked == []
