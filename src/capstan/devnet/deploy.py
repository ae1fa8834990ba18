"""Puts the contracts and the sample data on a fresh development chain.

Called once after the chain has started, by the development runner and by the test fixtures. Everything is deployed with
ordinary signed transactions, at addresses that are the same on every run: EntryPoints, account factories and Multicall3
at their canonical addresses, our own contracts through the deterministic deployment proxy with salt 0. Only mining is
asked for explicitly (`evm_mine`), so that nobody waits for the block time. The chain must be fresh: this module does
not repair a half-deployed one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from eth_account import Account

from capstan.core.hexes import parse_data, parse_quantity, to_data
from capstan.devnet import accounts, plan
from capstan.devnet.artifacts import PresignedDeployment, load_presigned
from capstan.devnet.errors import DevnetError, NodeRpcError
from capstan.devnet.evm import CHAIN_ID
from capstan.devnet.install import NodeProject, Report, ensure_node_project
from capstan.devnet.models import Deployment, DevAccount, PriceFeed, SampleCollection, SampleToken
from capstan.devnet.rpc import NodeRpc

MAX_FEE_PER_GAS = 20_000_000_000
MAX_PRIORITY_FEE_PER_GAS = 1_000_000_000
# The deployment fits into two or three blocks. More than this many means that something is stuck.
MOST_BLOCKS_PER_ROUND = 20


class _Sent(msgspec.Struct, frozen=True):
    label: str
    transaction_hash: str


async def deploy_all(url: str, report: Report, *, project: NodeProject | None = None) -> Deployment:
    """Deploys everything and mints the sample data. Raises `DevnetError` naming the step that failed."""
    project = project or ensure_node_project(report)
    keys = accounts.derive_accounts()
    owner = keys[accounts.PAYMASTER_OWNER_INDEX]
    proxy = load_presigned("DeterministicDeploymentProxy")
    multicall3 = load_presigned("Multicall3")
    contracts = plan.contracts(project, proxy.address, keys)
    async with NodeRpc(url) as rpc:
        await _check_fresh(rpc, url, proxy)
        sender = _Sender(rpc, owner)
        report("deploying the ERC-4337 and sample contracts")
        await _deploy_presigned(sender, (proxy, multicall3))
        for contract in contracts.all():
            code = contract.salt + contract.init_code
            await sender.send(f"deploy {contract.name}", proxy.address, gas=plan.DEPLOY_GAS, data=code)
        for call in plan.calls(contracts, keys):
            await sender.send(call.label, call.to, gas=plan.CALL_GAS, data=call.data, value=call.value)
        await sender.mine()
        expected = [proxy.address, multicall3.address, *(contract.address for contract in contracts.all())]
        await _check_code(rpc, expected)
    report(f"deployed {len(expected)} contracts")
    return _deployment(keys, contracts, proxy, multicall3)


class _Sender:
    """Signs and sends transactions of one account, counting its nonce, and mines them."""

    def __init__(self, rpc: NodeRpc, account: DevAccount) -> None:
        self._rpc = rpc
        self._account = account
        self._nonce = 0
        self._sent: list[_Sent] = []

    async def send(self, label: str, to: str, *, gas: int, data: bytes = b"", value: int = 0) -> None:
        signed = Account.sign_transaction(
            {
                "type": 2,
                "chainId": CHAIN_ID,
                "nonce": self._nonce,
                "to": to,
                "value": value,
                "data": data,
                "gas": gas,
                "maxFeePerGas": MAX_FEE_PER_GAS,
                "maxPriorityFeePerGas": MAX_PRIORITY_FEE_PER_GAS,
            },
            self._account.private_key,
        )
        self._nonce += 1
        await self.send_raw(label, to_data(bytes(signed.raw_transaction)))

    async def send_raw(self, label: str, raw_transaction: str) -> None:
        try:
            transaction_hash = await self._rpc.call("eth_sendRawTransaction", raw_transaction)
        except NodeRpcError as error:
            raise DevnetError(f"the development chain refused the transaction '{label}': {error}") from error
        self._sent.append(_Sent(label, transaction_hash))

    async def mine(self) -> None:
        """Mines until everything sent is in a block, and checks that nothing failed."""
        waiting = self._sent
        for _ in range(MOST_BLOCKS_PER_ROUND):
            await self._rpc.call("evm_mine")
            waiting = [sent for sent in waiting if not await self._is_mined(sent)]
            if not waiting:
                self._sent = []
                return
        labels = ", ".join(sent.label for sent in waiting)
        raise DevnetError(f"not mined after {MOST_BLOCKS_PER_ROUND} blocks: {labels}")

    async def _is_mined(self, sent: _Sent) -> bool:
        receipt = await self._rpc.call("eth_getTransactionReceipt", sent.transaction_hash)
        if receipt is None:
            return False
        if parse_quantity(receipt["status"]) != 1:
            raise DevnetError(f"the transaction '{sent.label}' failed on the chain ({sent.transaction_hash})")
        return True


async def _check_fresh(rpc: NodeRpc, url: str, proxy: PresignedDeployment) -> None:
    chain_id = parse_quantity(await rpc.call("eth_chainId"))
    if chain_id != CHAIN_ID:
        raise DevnetError(f"{url} is chain {chain_id}, not the development chain {CHAIN_ID}; nothing was deployed")
    if await rpc.call("eth_getCode", proxy.address, "latest") != "0x":
        raise DevnetError(f"the chain at {url} is already set up; start a fresh one")


async def _deploy_presigned(sender: _Sender, deployments: Sequence[PresignedDeployment]) -> None:
    for deployment in deployments:
        await sender.send(
            f"fund {deployment.deployer}", deployment.deployer, gas=plan.TRANSFER_GAS, value=int(deployment.funding)
        )
    await sender.mine()
    for deployment in deployments:
        await sender.send_raw(f"presigned deployment of {deployment.address}", deployment.raw_transaction)
    await sender.mine()


async def _check_code(rpc: NodeRpc, addresses: Sequence[str]) -> None:
    for address in addresses:
        if not parse_data(await rpc.call("eth_getCode", address, "latest")):
            raise DevnetError(f"the deployment left no contract at {address}")


def _deployment(
    keys: Sequence[DevAccount],
    contracts: plan.Contracts,
    proxy: PresignedDeployment,
    multicall3: PresignedDeployment,
) -> Deployment:
    tokens = tuple(
        SampleToken(address=contract.address, symbol=token.symbol, decimals=token.decimals, minter_index=0)
        for token, contract in zip(plan.TOKENS, contracts.tokens, strict=True)
    )
    feeds: list[tuple[plan.Contract, str, str | None]] = [(contracts.native_feed, plan.NATIVE_FEED, None)]
    feeds += [
        (feed, plan.feed_description(token), contract.address)
        for feed, token, contract in zip(contracts.token_feeds, plan.TOKENS, contracts.tokens, strict=True)
    ]
    return Deployment(
        chain_id=CHAIN_ID,
        accounts=tuple(keys[: accounts.USER_ACCOUNTS]),
        entry_points={version: contract.address for version, contract in contracts.entry_points.items()},
        factories={version: contract.address for version, contract in contracts.factories.items()},
        paymasters={version: contract.address for version, contract in contracts.paymasters.items()},
        paymaster_signer=keys[accounts.PAYMASTER_SIGNER_INDEX],
        paymaster_owner=keys[accounts.PAYMASTER_OWNER_INDEX],
        bundler_executors=tuple(keys[accounts.FIRST_EXECUTOR_INDEX : accounts.FUNDED_ACCOUNTS]),
        tokens=tokens,
        nfts=(
            SampleCollection(address=contracts.erc721.address, standard="ERC721"),
            SampleCollection(address=contracts.erc1155.address, standard="ERC1155"),
        ),
        price_feeds=tuple(
            PriceFeed(address=feed.address, description=description, decimals=plan.FEED_DECIMALS, token=token)
            for feed, description, token in feeds
        ),
        multicall3=multicall3.address,
        deployment_proxy=proxy.address,
    )
