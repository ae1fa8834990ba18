"""The parts of the node's wrapper that need no node: bounded output, checked arguments, accounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from capstan.devnet.accounts import derive_accounts
from capstan.devnet.errors import DevnetError
from capstan.devnet.evm import _KEPT_LINES, _LONGEST_LINE, EvmNode, _Output
from capstan.devnet.install import NodeProject


@pytest.fixture
def project(tmp_path: Path) -> NodeProject:
    return NodeProject(node=tmp_path / "node", directory=tmp_path)


def test_output_keeps_the_last_lines_only() -> None:
    output = _Output()
    output.feed(b"".join(b"line %d\n" % number for number in range(1000)))
    assert len(output.lines) == _KEPT_LINES
    assert output.tail().splitlines()[-1] == "  line 999"


def test_output_joins_a_line_that_comes_in_pieces() -> None:
    output = _Output()
    assert output.feed(b"capstan-dev") == []
    assert output.feed(b"net-ready 1\nnext") == ["capstan-devnet-ready 1"]
    assert output.tail().endswith("next")


def test_output_without_line_ends_stays_bounded() -> None:
    output = _Output()
    for _ in range(100):
        output.feed(b"x" * 65536)
    assert sum(len(line) for line in output.lines) <= _KEPT_LINES * _LONGEST_LINE
    assert len(output._partial) <= _LONGEST_LINE


def test_output_that_is_not_utf8_is_shown_all_the_same() -> None:
    output = _Output()
    assert output.feed(b"bad \xff\n") == ["bad \N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("block_time", [0, -1, 0.001])
def test_a_block_time_that_cannot_be_is_refused(project: NodeProject, block_time: float) -> None:
    with pytest.raises(ValueError, match="block_time"):
        EvmNode(project, block_time=block_time)


async def test_a_node_that_was_never_started_has_no_address_and_stops_quietly(project: NodeProject) -> None:
    node = EvmNode(project)
    assert not node.running
    with pytest.raises(RuntimeError, match="not started"):
        _ = node.url
    with pytest.raises(RuntimeError, match="not started"):
        _ = node.pid
    await node.stop()


async def test_a_missing_executable_leaves_the_node_stopped(project: NodeProject) -> None:
    node = EvmNode(project)
    with pytest.raises(DevnetError, match=r"cannot run .*node in .*Run: python -m capstan\.devnet\.install"):
        await node.start()
    assert not node.running
    await node.stop()


def test_accounts_are_those_of_the_test_mnemonic() -> None:
    first, second = derive_accounts(2)
    assert first.address == "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    assert first.private_key == "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"
    assert second.address == "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
