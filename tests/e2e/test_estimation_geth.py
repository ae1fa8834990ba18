"""Estimates on geth, whose overrides and gas are its own: an operation lands with what was estimated there too."""

import pytest
from eth_abi.abi import encode
from eth_account import Account
from eth_account.messages import encode_defunct
from eth_utils.crypto import keccak

from capstan.bundler.estimation.models import GasLimits, Price
from capstan.bundler.estimation.service import GasEstimator
from capstan.bundler.simulator import Simulator
from capstan.core.hexes import to_data
from capstan.devnet.artifacts import load_package_contract
from capstan.devnet.install import NodeProject
from capstan.devnet.plan import RELEASES
from capstan.userops.codec import codec_for, encode_handle_ops
from capstan.userops.events import OperationHandled, decode_event
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version
from tests.support.entrypoint import DUMMY_SIGNATURE, changed
from tests.support.geth import CHAIN_ID, RICH, Geth, running_geth
from tests.support.simulation import open_network
from tools.geth import BINARY

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason="geth is not built; `make geth` does that, with Go")
_FEE, _TIP = 20 * 10**9, 10**9


def _deploy(geth: Geth, project: NodeProject, version: Version, name: str, *arguments: str) -> str:
    compiled = load_package_contract(project, RELEASES[version].package, name)
    receipt = geth.send(RICH, None, data=compiled.init_code(["address"] * len(arguments), list(arguments)))
    assert receipt["status"] == "0x1"
    return str(receipt["contractAddress"])


def _creation(geth: Geth, factory: str, owner: str) -> UserOperation:
    """Creates an account, which then calls its own factory for an address: a call that costs something."""
    arguments = encode(["address", "uint256"], [owner, 7])
    ask = keccak(b"getAddress(address,uint256)")[:4] + arguments
    sender = geth.call("eth_call", {"to": factory, "data": to_data(ask)}, "latest")[-40:]
    call = keccak(b"execute(address,uint256,bytes)")[:4] + encode(["address", "uint256", "bytes"], [factory, 0, ask])
    return UserOperation(
        sender=bytes.fromhex(sender),
        nonce=0,
        factory=bytes.fromhex(factory[2:]),
        factory_data=keccak(b"createAccount(address,uint256)")[:4] + arguments,
        call_data=call,
        signature=DUMMY_SIGNATURE,
    )


async def _estimate(geth: Geth, version: Version, entry_point: bytes, operation: UserOperation) -> GasLimits:
    async def price() -> Price:
        return Price(10**9, _FEE, _TIP)

    async with open_network(geth.url) as (network, _heads):
        return await GasEstimator(Simulator(lambda: network, version, entry_point, CHAIN_ID), price).estimate(operation)


@pytest.mark.parametrize("version", ["0.6", "0.7", "0.8"])
async def test_a_new_account_lands_with_its_estimate(node_project: NodeProject, version: Version) -> None:
    owner, codec = Account.create(), codec_for(version)
    with running_geth() as geth:
        place = _deploy(geth, node_project, version, "EntryPoint")
        factory = _deploy(geth, node_project, version, "SimpleAccountFactory", place)
        entry_point = bytes.fromhex(place[2:])
        operation = _creation(geth, factory, owner.address)
        limits = await _estimate(geth, version, entry_point, operation)
        geth.send(RICH, to_data(operation.sender), value=10**18, gas=100_000)
        ready = changed(
            operation,
            verification_gas_limit=limits.verification_gas_limit,
            call_gas_limit=limits.call_gas_limit,
            pre_verification_gas=limits.pre_verification_gas,
            max_fee_per_gas=_FEE,
            max_priority_fee_per_gas=_TIP,
        )
        hashed = codec.hash(ready, entry_point, CHAIN_ID)
        if codec.release.typed_hash:
            signature = Account.unsafe_sign_hash(hashed, owner.key).signature
        else:
            signature = owner.sign_message(encode_defunct(hashed)).signature
        beneficiary = bytes.fromhex(RICH.address[2:])
        bundle = encode_handle_ops(version, [changed(ready, signature=bytes(signature))], beneficiary)
        receipt = geth.send(RICH, place, data=bundle)
        assert receipt["status"] == "0x1"
        events = [
            decode_event([bytes.fromhex(topic[2:]) for topic in log["topics"]], bytes.fromhex(log["data"][2:]))
            for log in receipt["logs"]
        ]
        (handled,) = [each for each in events if isinstance(each, OperationHandled)]
        assert handled.success
        assert handled.actual_gas_used >= int(receipt["gasUsed"], 16)
