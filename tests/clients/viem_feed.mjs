// viem over WebSocket: subscriptions of the feed, and reads and a transaction on the same socket.

import { createPublicClient, createWalletClient, defineChain, parseAbi, parseAbiItem, webSocket } from "viem";
import { privateKeyToAccount } from "viem/accounts";
import { eventually, finish, input, step } from "./report.mjs";

const chain = defineChain({
  id: input.chain_id,
  name: "devnet",
  nativeCurrency: { name: "Ether", symbol: "ETH", decimals: 18 },
  rpcUrls: { default: { http: [input.url] } },
});
const transport = webSocket(input.feed_url, { reconnect: false, retryCount: 0 });
const account = privateKeyToAccount(input.private_key);
const client = createPublicClient({ chain, transport, pollingInterval: 100 });
const wallet = createWalletClient({ account, chain, transport });
const token = { address: input.token, abi: parseAbi(["function mint(address to, uint256 amount)"]) };
const transfer = parseAbiItem("event Transfer(address indexed sender, address indexed receiver, uint256 value)");
const receiver = input.receiver;
const errors = [];
const onError = (error) => errors.push(error.message);

await step("chain id", () => client.getChainId());
await step("reads", async () => ({
  number: await client.getBlockNumber(),
  balance: await client.getBalance({ address: account.address, blockNumber: 0n }),
  block: await client.getBlock({ blockNumber: 1n }),
}));

await step("blocks", async () => {
  const seen = [];
  const stop = client.watchBlocks({ poll: false, onBlock: (block) => seen.push(block), onError });
  await eventually(() => seen.length >= 3);
  stop();
  return seen.map(({ number, hash, parentHash, timestamp, gasLimit, baseFeePerGas }) => ({
    number,
    hash,
    parentHash,
    timestamp,
    gasLimit,
    baseFeePerGas,
  }));
});

await step("block numbers", async () => {
  const seen = [];
  const stop = client.watchBlockNumber({ poll: false, onBlockNumber: (number) => seen.push(number), onError });
  await eventually(() => seen.length >= 2);
  stop();
  return seen;
});

await step("events", async () => {
  const logs = [];
  const hashes = [];
  const wanted = { address: input.token, event: transfer, args: { receiver } };
  const stopEvents = client.watchEvent({ poll: false, ...wanted, onLogs: (found) => logs.push(...found), onError });
  const stopPending = client.watchPendingTransactions({
    poll: false,
    onTransactions: (found) => hashes.push(...found),
    onError,
  });
  // The subscriptions are under way before the transaction is.
  await client.getBlockNumber({ cacheTime: 0 });
  const hash = await wallet.writeContract({ ...token, functionName: "mint", args: [receiver, 77n] });
  const receipt = await client.waitForTransactionReceipt({ hash, timeout: 30_000 });
  await eventually(() => logs.length && hashes.includes(hash));
  stopEvents();
  stopPending();
  return { hash, blockNumber: receipt.blockNumber, logs, pending: hashes.includes(hash) };
});

await step("errors", () => errors);
finish();
