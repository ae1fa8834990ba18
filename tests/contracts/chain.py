"""What the contract tests share: deploy, call and transact on the real development chain through web3.py.

web3.py is the client here because users have it too; the product does not use it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vyper import compile_code
from web3 import Web3
from web3.contract import Contract
from web3.contract.contract import ContractFunction

from capstan.devnet.artifacts import load_contract
from capstan.devnet.models import DevAccount
from tests.support.devnet import EvmDevnet

MOCKS = Path(__file__).parent / "mocks"
ZERO_ADDRESS = "0x" + "00" * 20


class Chain:
    """The development chain with accounts that only the contract tests use."""

    def __init__(self, devnet: EvmDevnet) -> None:
        self.devnet = devnet
        self.web3 = Web3(Web3.HTTPProvider(devnet.url, request_kwargs={"timeout": 30}))
        self.deployer, self.alice, self.bob, self.carol = devnet.deployment.accounts[10:14]

    def contract(self, address: str, abi: Any) -> Contract:
        return self.web3.eth.contract(address=Web3.to_checksum_address(address), abi=abi)

    def deploy(self, abi: Any, bytecode: str, *arguments: object) -> Contract:
        """A fresh contract, so that no test depends on what another did."""
        data = self.web3.eth.contract(abi=abi, bytecode=bytecode).constructor(*arguments).data_in_transaction
        receipt = self.devnet.send(self.deployer, None, data=data, gas=8_000_000)
        assert receipt["status"] == "0x1"
        return self.contract(receipt["contractAddress"], abi)

    def deploy_sample(self, name: str, *arguments: object) -> Contract:
        compiled = load_contract(name)
        return self.deploy(compiled.abi, compiled.bytecode, *arguments)

    def deploy_receiver(self, *, accepts: bool) -> Contract:
        compiled = compile_code((MOCKS / "TokenReceiver.vy").read_text(), output_formats=["abi", "bytecode"])
        return self.deploy(compiled["abi"], compiled["bytecode"], accepts)

    def transact(self, account: DevAccount, function: ContractFunction, *, value: int = 0) -> dict[str, Any]:
        """Sends the call as a transaction and returns the receipt of its success."""
        data = function._encode_transaction_data()
        receipt = self.devnet.send(account, function.address, data=data, value=value)
        assert receipt["status"] == "0x1", f"{function.fn_name} failed"
        return receipt

    def block_time(self, block: str) -> int:
        """The timestamp of a block."""
        return int(self.devnet.call("eth_getBlockByNumber", block, False)["timestamp"], 16)

    def events(self, contract: Contract, name: str, receipt: dict[str, Any]) -> list[dict[str, Any]]:
        """The arguments of the events of this name in the receipt."""
        full = self.web3.eth.get_transaction_receipt(receipt["transactionHash"])
        ours = [log for log in full["logs"] if log["address"] == contract.address]
        topic = contract.events[name]().topic
        return [
            dict(contract.events[name]().process_log(log)["args"])
            for log in ours
            if log["topics"][0].to_0x_hex() == topic
        ]
