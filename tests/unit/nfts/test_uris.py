"""Where token URIs lead, in all the forms that contracts use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.nfts.uris import Gateways, Inline, Remote, content_path

V0 = "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKnsH7"
V1 = "bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354"
GATEWAYS = Gateways(("https://one.example/", "https://two.example"), ("https://ar.example",))


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        (f"ipfs://{V0}", f"/ipfs/{V0}"),
        (f"IPFS://{V0}/1", f"/ipfs/{V0}/1"),
        (f"ipfs://{V1}/dir/1.json", f"/ipfs/{V1}/dir/1.json"),
        (f"ipfs://ipfs/{V1}/1", f"/ipfs/{V1}/1"),
        (f"ipfs:///{V1}/1", f"/ipfs/{V1}/1"),
        (f"ipfs://ipns/{V1}/1", f"/ipns/{V1}/1"),
        (V0, f"/ipfs/{V0}"),
        (f"{V1}/7", f"/ipfs/{V1}/7"),
        (f"/ipfs/{V0}/7", f"/ipfs/{V0}/7"),
        (f"ipfs/{V0}/7", f"/ipfs/{V0}/7"),
        (f"https://gateway.pinata.cloud/ipfs/{V0}/7.json", f"/ipfs/{V0}/7.json"),
        (f"http://10.0.0.1:8080/ipfs/{V0}", f"/ipfs/{V0}"),
        (f"https://{V1}.ipfs.nftstorage.link/7?x=1", f"/ipfs/{V1}/7"),
        ("ipns://example.com/7", "/ipns/example.com/7"),
        ("https://ipfs.io/ipns/docs.ipfs.tech/x", "/ipns/docs.ipfs.tech/x"),
        (f"ipfs://{V1}/a b#c?d.json", f"/ipfs/{V1}/a%20b%23c%3Fd.json"),
        (f"ipfs://{V1}/a%20b.json", f"/ipfs/{V1}/a%20b.json"),
    ],
)
def test_ipfs_in_every_form(uri: str, path: str) -> None:
    assert content_path(uri) == path
    target = GATEWAYS.target(uri)
    assert isinstance(target, Remote)
    assert target.urls[:2] == ("https://one.example" + path, "https://two.example" + path)
    # An address of its own is the last resort.
    assert target.urls[2:] == ((uri,) if uri.startswith("http") else ())
    assert GATEWAYS.image(uri) == "https://one.example" + path


@pytest.mark.parametrize(
    "uri",
    ["", "ipfs://", "ipfs://Qmshort", "ipns://", "https://example.com/ipfs-is-great", "hello", "file:///etc/passwd"],
)
def test_what_is_not_ipfs(uri: str) -> None:
    assert content_path(uri) is None


def test_letter_case_of_a_cid_is_kept() -> None:
    assert V0 in (GATEWAYS.image(f"ipfs://{V0}") or "")


def test_arweave() -> None:
    transaction = "aB-_" + "0" * 39
    assert GATEWAYS.image(f"ar://{transaction}/1.png") == f"https://ar.example/{transaction}/1.png"
    assert GATEWAYS.image("ar://nonsense") is None


def test_images_over_http_keep_their_address_and_data_has_none() -> None:
    assert GATEWAYS.image("https://example.com/1.png?size=big") == "https://example.com/1.png?size=big"
    assert GATEWAYS.image("data:image/png;base64,AAAA") is None
    assert GATEWAYS.image(None) is None
    assert GATEWAYS.image("https://example.com/" + "x" * 3000) is None
    assert Gateways((), ()).image(f"ipfs://{V0}") is None


@pytest.mark.parametrize(
    ("uri", "kind", "content"),
    [
        ("data:application/json;base64,eyJhIjoxfQ==", "application/json", b'{"a":1}'),
        ("data:application/json;base64,eyJhIjoxfQ", "application/json", b'{"a":1}'),
        ("data:application/json;charset=utf-8;base64,eyJh\nIjoxfQ==", "application/json", b'{"a":1}'),
        ("data:application/json;utf8,{%22a%22:1}", "application/json", b'{"a":1}'),
        ('data:application/json,{"a":1}', "application/json", b'{"a":1}'),
        ('DATA:,{"a":1}', "text/plain", b'{"a":1}'),
        ("data:image/svg+xml;utf8,<svg fill='#fff'/>", "image/svg+xml", b"<svg fill='#fff'/>"),
        ('{"a":1}', "application/json", b'{"a":1}'),
        ("<svg/>", "image/svg+xml", b"<svg/>"),
    ],
)
def test_content_inside_the_uri(uri: str, kind: str, content: bytes) -> None:
    target = GATEWAYS.target(uri)
    assert isinstance(target, Inline)
    assert (target.media_type, target.content) == (kind, content)


@given(st.text(max_size=200))
def test_nothing_breaks_it(uri: str) -> None:
    GATEWAYS.target(uri)
    GATEWAYS.image(uri)


@given(st.sampled_from(["data:", "ipfs://", "https://", "ar://", "ipns://", "data:;base64,"]), st.text(max_size=80))
def test_nothing_behind_a_scheme_breaks_it(scheme: str, rest: str) -> None:
    GATEWAYS.target(scheme + rest)
