// ethers over WebSocket: blocks, events of a contract and pending transactions, and a transaction on the same socket.

import { Contract, WebSocketProvider, Wallet } from "ethers";
import { eventually, finish, input, step } from "./report.mjs";

const provider = new WebSocketProvider(input.feed_url);
const wallet = new Wallet(input.private_key, provider);
const token = new Contract(
  input.token,
  [
    "function mint(address to, uint256 amount)",
    "event Transfer(address indexed sender, address indexed receiver, uint256 value)",
  ],
  wallet,
);
const receiver = input.receiver;

await step("chain id", async () => (await provider.getNetwork()).chainId);
await step("reads", async () => ({
  number: await provider.getBlockNumber(),
  balance: await provider.getBalance(wallet.address, 0),
  block: (await provider.getBlock(1)).toJSON(),
}));

await step("block numbers", async () => {
  const seen = [];
  await provider.on("block", (number) => seen.push(number));
  await eventually(() => seen.length >= 3);
  await provider.removeAllListeners("block");
  return seen;
});

await step("events", async () => {
  const logs = [];
  const hashes = [];
  await token.on(token.filters.Transfer(null, receiver), (event) => logs.push(event.log));
  await provider.on("pending", (hash) => hashes.push(hash));
  await provider.getBlockNumber();
  const sent = await token.mint(receiver, 77n);
  const receipt = await sent.wait(1, 30_000);
  await eventually(() => logs.length && hashes.includes(sent.hash));
  await token.removeAllListeners();
  await provider.removeAllListeners("pending");
  return {
    hash: sent.hash,
    blockNumber: receipt.blockNumber,
    logs: logs.map((log) => ({ transactionHash: log.transactionHash, args: { value: log.data } })),
    pending: hashes.includes(sent.hash),
  };
});

await provider.destroy();
finish();
