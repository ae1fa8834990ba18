"""Reads the contracts that the deployment puts on the development chain.

Three sources: our own contracts, compiled and committed (`catalogue/contracts`, see contracts/README.md); presigned
deployment transactions, committed beside them; and the ERC-4337 artifacts of the installed npm packages. Nothing here
talks to a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from eth_abi.abi import encode
from eth_account import Account

from capstan.core import creation
from capstan.core.hexes import keccak256, parse_address, parse_data, to_checksum_address
from capstan.devnet.errors import DevnetError
from capstan.devnet.install import NodeProject

CATALOGUE = Path(__file__).resolve().parent.parent / "catalogue" / "contracts"


class CompiledContract(msgspec.Struct, frozen=True):
    """ABI and creation bytecode of a contract."""

    abi: list[dict[str, Any]]
    bytecode: str

    def init_code(self, types: Sequence[str] = (), values: Sequence[object] = ()) -> bytes:
        """The creation bytecode followed by the ABI-encoded constructor arguments."""
        return parse_data(self.bytecode) + encode(types, values)


class PresignedDeployment(msgspec.Struct, frozen=True):
    """A signed transaction that puts a contract at one address on every chain, once its sender has `funding` wei."""

    address: str
    deployer: str
    funding: str
    transaction_hash: str
    raw_transaction: str


def load_contract(name: str) -> CompiledContract:
    """One of our own contracts, for example `SampleERC20`."""
    return msgspec.json.decode((CATALOGUE / f"{name}.json").read_bytes(), type=CompiledContract)


def load_presigned(name: str) -> PresignedDeployment:
    """A presigned deployment, checked: the hash is that of the bytes, and the signature is the deployer's."""
    presigned = msgspec.json.decode((CATALOGUE / f"{name}.json").read_bytes(), type=PresignedDeployment)
    transaction_hash = "0x" + keccak256(parse_data(presigned.raw_transaction)).hex()
    if transaction_hash != presigned.transaction_hash:
        raise DevnetError(f"{name}.json: the transaction's hash is {transaction_hash}; the file is damaged")
    if Account.recover_transaction(presigned.raw_transaction) != presigned.deployer:
        raise DevnetError(f"{name}.json: the transaction was not signed by {presigned.deployer}; the file is damaged")
    return presigned


def load_package_contract(project: NodeProject, package: str, name: str) -> CompiledContract:
    """A contract of an installed npm package, for example `EntryPoint` of `aa07`."""
    path = project.directory / "node_modules" / package / "artifacts" / f"{name}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=CompiledContract)
    except FileNotFoundError:
        raise DevnetError(
            f"{path} is missing; delete {project.directory} and run: python -m capstan.devnet.install"
        ) from None


def create2_address(deployer: str, salt: bytes, init_code: bytes) -> str:
    """The address that CREATE2 gives (EIP-1014)."""
    return to_checksum_address(creation.create2_address(parse_address(deployer), salt, init_code))


def call_data(signature: str, *values: object) -> bytes:
    """Calldata for a function with plain argument types, for example `mint(address,uint256)`."""
    types = [kind for kind in signature[signature.index("(") + 1 : -1].split(",") if kind]
    return keccak256(signature.encode())[:4] + encode(types, values)
