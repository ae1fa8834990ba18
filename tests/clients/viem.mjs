// viem over HTTP, through the gateway, as an application uses it.

import {
  BaseError,
  ContractFunctionRevertedError,
  createPublicClient,
  createWalletClient,
  defineChain,
  http,
  parseAbi,
  parseAbiItem,
} from "viem";
import { privateKeyToAccount } from "viem/accounts";
import { getSenderAddress } from "permissionless/actions";
import { toSimpleSmartAccount } from "permissionless/accounts";
import { eventually, finish, input, step } from "./report.mjs";

const chain = defineChain({
  id: input.chain_id,
  name: "devnet",
  nativeCurrency: { name: "Ether", symbol: "ETH", decimals: 18 },
  rpcUrls: { default: { http: [input.url] } },
  contracts: { multicall3: { address: input.multicall } },
});
const options = { fetchOptions: { headers: { "X-API-Key": input.api_key } }, retryCount: 0 };
const account = privateKeyToAccount(input.private_key);
const client = createPublicClient({ chain, transport: http(input.url, options), pollingInterval: 100, cacheTime: 0 });
const wallet = createWalletClient({ account, chain, transport: http(input.url, options) });
const batching = createPublicClient({
  chain,
  transport: http(input.url, { ...options, batch: { batchSize: 100, wait: 20 } }),
});
const token = {
  address: input.token,
  abi: parseAbi([
    "function mint(address to, uint256 amount)",
    "function transfer(address to, uint256 amount) returns (bool)",
    "function balanceOf(address owner) view returns (uint256)",
    "function symbol() view returns (string)",
    "function decimals() view returns (uint8)",
    "function totalSupply() view returns (uint256)",
  ]),
};
const entryPoint = {
  address: input.entry_point,
  abi: parseAbi(["function getSenderAddress(bytes initCode)", "error SenderAddressResult(address sender)"]),
};
const transfer = parseAbiItem("event Transfer(address indexed sender, address indexed receiver, uint256 value)");
const receiver = input.receiver;

await step("chain id", () => client.getChainId());
await step("block number", () => client.getBlockNumber());
await step("block", () => client.getBlock({ blockNumber: 1n, includeTransactions: true }));
await step("latest block", async () => (await client.getBlock()).number);
await step("balance", () => client.getBalance({ address: account.address, blockNumber: 0n }));
await step("code", () => client.getCode({ address: input.token }));
await step("storage", () => client.getStorageAt({ address: input.token, slot: "0x3" }));
await step("gas price", () => client.getGasPrice());
await step("fee history", () => client.getFeeHistory({ blockCount: 2, blockNumber: 3n, rewardPercentiles: [25, 75] }));
await step("fees", () => client.estimateFeesPerGas());
await step("gas", () => client.estimateGas({ account, to: receiver, value: 1n }));

// Filters are made before the transactions that they are to see.
const blockFilter = await client.createBlockFilter();
const wanted = { address: input.token, event: transfer, args: { receiver } };
const eventFilter = await client.createEventFilter(wanted);
// This node forgets the logs of a filter once its changes were read, so another one is asked for all logs.
const logFilter = await client.createEventFilter(wanted);

await step("transaction", async () => {
  const hash = await wallet.sendTransaction({ to: receiver, value: 12345n });
  const receipt = await client.waitForTransactionReceipt({ hash, timeout: 30_000 });
  const transaction = await client.getTransaction({ hash });
  return { hash, receipt, transaction, balance: await client.getBalance({ address: receiver }) };
});

await step("mint", async () => {
  const { request } = await client.simulateContract({ ...token, account, functionName: "mint", args: [receiver, 77n] });
  const hash = await wallet.writeContract(request);
  const receipt = await client.waitForTransactionReceipt({ hash, timeout: 30_000 });
  const blockNumber = receipt.blockNumber;
  return {
    hash,
    blockNumber,
    // The receipt was seen, so the state at the head includes it.
    balance: await client.readContract({ ...token, functionName: "balanceOf", args: [receiver] }),
    logs: await client.getLogs({ address: input.token, event: transfer, fromBlock: blockNumber, toBlock: blockNumber }),
    byHash: await client.getLogs({ address: input.token, event: transfer, blockHash: receipt.blockHash }),
  };
});

await step("event filter", () =>
  eventually(async () => {
    const changes = await client.getFilterChanges({ filter: eventFilter });
    return changes.length ? changes : null;
  }),
);
await step("filter logs", () => client.getFilterLogs({ filter: logFilter }));
await step("block filter", () => client.getFilterChanges({ filter: blockFilter }));
await step("filters gone", async () => [
  await client.uninstallFilter({ filter: eventFilter }),
  await client.uninstallFilter({ filter: logFilter }),
  await client.uninstallFilter({ filter: blockFilter }),
]);

await step("read contract", async () => ({
  symbol: await client.readContract({ ...token, functionName: "symbol" }),
  decimals: await client.readContract({ ...token, functionName: "decimals" }),
}));
await step("multicall", () =>
  client.multicall({
    contracts: [
      { ...token, functionName: "symbol" },
      { ...token, functionName: "balanceOf", args: [receiver] },
      { ...token, functionName: "transfer", args: [receiver, 10n ** 40n] },
    ],
  }),
);
await step("batch", () =>
  Promise.all(
    Array.from({ length: 100 }, (_, place) =>
      place % 2 === 0
        ? batching.getBalance({ address: input.addresses[place % input.addresses.length], blockNumber: 0n })
        : batching.getTransactionCount({ address: receiver, blockNumber: BigInt(place % 3) }),
    ),
  ),
);

async function reverted(work) {
  try {
    await work();
  } catch (error) {
    const found = error instanceof BaseError && error.walk((inner) => inner instanceof ContractFunctionRevertedError);
    if (!found) throw error;
    return { reason: found.reason ?? null, name: found.data?.errorName ?? null, args: found.data?.args ?? null };
  }
  throw new Error("the call did not revert");
}

await step("reason", () =>
  reverted(() =>
    client.simulateContract({ ...token, account: receiver, functionName: "transfer", args: [receiver, 10n ** 40n] }),
  ),
);
await step("custom error", () =>
  reverted(() => client.readContract({ ...entryPoint, functionName: "getSenderAddress", args: [input.init_code] })),
);
await step("reverting gas estimate", () =>
  reverted(() =>
    client.estimateContractGas({ ...token, account: receiver, functionName: "transfer", args: [receiver, 10n ** 40n] }),
  ),
);
await step("unknown method", async () => {
  try {
    await client.request({ method: "eth_noSuchMethod" });
  } catch (error) {
    return { name: error.name, code: error.code };
  }
  return "no error";
});
await step("wrong key", async () => {
  const headers = { "X-API-Key": "svc_test_wrong" };
  try {
    await createPublicClient({ chain, transport: http(input.url, { fetchOptions: { headers }, retryCount: 0 }) }).getChainId();
  } catch (error) {
    return { name: error.name, status: error.status };
  }
  return "no error";
});

// permissionless reads the address of a smart account in two ways: from the error of the entry point, and from the factory.
await step("smart account", async () => ({
  sender: await getSenderAddress(client, {
    factory: input.init_code.slice(0, 42),
    factoryData: `0x${input.init_code.slice(42)}`,
    entryPointAddress: input.entry_point,
  }),
  account: (
    await toSimpleSmartAccount({
      client,
      owner: account,
      entryPoint: { address: input.entry_point, version: "0.7" },
      factoryAddress: input.factory,
      index: 5n,
    })
  ).address,
}));

finish();
