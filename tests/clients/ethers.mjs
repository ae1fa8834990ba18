// ethers over HTTP, through the gateway, with the batches that it makes by default.

import { Contract, FetchRequest, JsonRpcProvider, Network, Wallet, isCallException } from "ethers";
import { eventually, finish, input, step } from "./report.mjs";

const request = new FetchRequest(input.url);
request.setHeader("X-API-Key", input.api_key);
const network = Network.from(input.chain_id);
const provider = new JsonRpcProvider(request, network, {
  staticNetwork: network,
  batchMaxCount: 100,
  batchStallTime: 20,
  polling: true,
  pollingInterval: 200,
  cacheTimeout: -1,
});
const wallet = new Wallet(input.private_key, provider);
const token = new Contract(
  input.token,
  [
    "function mint(address to, uint256 amount)",
    "function transfer(address to, uint256 amount) returns (bool)",
    "function balanceOf(address owner) view returns (uint256)",
    "function symbol() view returns (string)",
    "event Transfer(address indexed sender, address indexed receiver, uint256 value)",
  ],
  wallet,
);
const entryPoint = new Contract(
  input.entry_point,
  ["function getSenderAddress(bytes initCode)", "error SenderAddressResult(address sender)"],
  provider,
);
const receiver = input.receiver;

await step("chain id", async () => (await new JsonRpcProvider(request).getNetwork()).chainId);
await step("block number", () => provider.getBlockNumber());
await step("block", async () => (await provider.getBlock(1, true)).toJSON());
await step("balance", () => provider.getBalance(wallet.address, 0));
await step("code", () => provider.getCode(input.token));
await step("storage", () => provider.getStorage(input.token, 3));
await step("fees", async () => (await provider.getFeeData()).toJSON());
await step("gas", () => provider.estimateGas({ from: wallet.address, to: receiver, value: 1n }));

await step("transaction", async () => {
  const sent = await wallet.sendTransaction({ to: receiver, value: 12345n });
  const receipt = await sent.wait(1, 30_000);
  return { hash: sent.hash, receipt: receipt.toJSON(), balance: await provider.getBalance(receiver) };
});

await step("mint", async () => {
  const seen = [];
  await token.on(token.filters.Transfer(null, receiver), (event) => seen.push(event.args.value));
  const sent = await token.mint(receiver, 77n);
  const receipt = await sent.wait(1, 30_000);
  const balance = await token.balanceOf(receiver);
  const logs = await token.queryFilter(token.filters.Transfer(null, receiver), receipt.blockNumber, receipt.blockNumber);
  await eventually(() => seen.length);
  await token.removeAllListeners();
  return {
    hash: sent.hash,
    blockNumber: receipt.blockNumber,
    balance,
    seen,
    logs: logs.map((log) => ({ value: log.args.value, index: log.index, hash: log.transactionHash })),
  };
});

await step("batch", () =>
  Promise.all(
    Array.from({ length: 100 }, (_, place) =>
      place % 2 === 0
        ? provider.getBalance(input.addresses[place % input.addresses.length], 0)
        : provider.getTransactionCount(receiver, place % 3),
    ),
  ),
);

async function refused(work) {
  try {
    await work();
  } catch (error) {
    if (!isCallException(error)) throw error;
    return { reason: error.reason, name: error.revert?.name ?? null, args: error.revert ? [...error.revert.args] : null };
  }
  throw new Error("the call did not revert");
}

await step("reason", () => refused(() => token.transfer.staticCall(receiver, 10n ** 40n)));
await step("custom error", () => refused(() => entryPoint.getSenderAddress.staticCall(input.init_code)));
await step("reverting gas estimate", () => refused(() => token.transfer.estimateGas(receiver, 10n ** 40n)));
await step("unknown method", async () => {
  try {
    await provider.send("eth_noSuchMethod", []);
  } catch (error) {
    return error.code;
  }
  return "no error";
});
await step("nonce too low", async () => {
  try {
    await wallet.sendTransaction({ to: receiver, value: 1n, nonce: 0 });
  } catch (error) {
    return error.code;
  }
  return "no error";
});

provider.destroy();
finish();
