// viem's bundler client and permissionless.js against the bundler, as an application uses them: nothing is told to them
// but addresses and a key. For each entry point one account: the first operation by viem, the second by permissionless.

import { createPublicClient, defineChain, encodeFunctionData, http, parseAbi } from "viem";
import { createBundlerClient } from "viem/account-abstraction";
import { privateKeyToAccount } from "viem/accounts";
import { createSmartAccountClient } from "permissionless";
import { toSimpleSmartAccount } from "permissionless/accounts";
import { finish, input, step } from "./report.mjs";

const chain = defineChain({
  id: input.chain_id,
  name: "devnet",
  nativeCurrency: { name: "Ether", symbol: "ETH", decimals: 18 },
  rpcUrls: { default: { http: [input.url] } },
});
const options = { fetchOptions: { headers: { "X-API-Key": input.api_key } }, retryCount: 0, timeout: 30_000 };
const client = createPublicClient({ chain, transport: http(input.url, options), pollingInterval: 100, cacheTime: 0 });
const transport = http(input.bundler_url, options);
const owner = privateKeyToAccount(input.private_key);
const abi = parseAbi([
  "function mint(address to, uint256 amount)",
  "function transfer(address to, uint256 amount) returns (bool)",
]);
const minting = (to, amount) => ({
  to: input.token,
  data: encodeFunctionData({ abi, functionName: "mint", args: [to, amount] }),
});

await step("chain id", () => createBundlerClient({ chain, transport }).getChainId());
await step("entry points", () => createBundlerClient({ chain, transport }).getSupportedEntryPoints());

async function use({ version, entryPoint, factory, index, receiver }) {
  const named = (name) => `${version} ${name}`;
  const account = await toSimpleSmartAccount({
    client,
    owner,
    entryPoint: { address: entryPoint, version },
    factoryAddress: factory,
    index: BigInt(index),
  });
  const bundler = createBundlerClient({ account, client, chain, transport, pollingInterval: 100 });
  await step(named("address"), () => account.getAddress());
  const calls = [minting(receiver, 5n), minting(receiver, 7n)];
  await step(named("estimate"), () => bundler.estimateUserOperationGas({ calls }));
  let hash;
  await step(named("send"), async () => (hash = await bundler.sendUserOperation({ calls })));
  await step(named("receipt"), () => bundler.waitForUserOperationReceipt({ hash, timeout: 60_000 }));
  await step(named("operation"), () => bundler.getUserOperation({ hash }));
  const smart = createSmartAccountClient({ account, client, chain, bundlerTransport: transport, pollingInterval: 100 });
  await step(named("transaction"), () => smart.sendTransaction(minting(receiver, 11n)));
  // What the account does not have cannot be moved: the estimate says so.
  const data = encodeFunctionData({ abi, functionName: "transfer", args: [receiver, 1n] });
  await step(named("reverting"), async () => {
    try {
      await bundler.estimateUserOperationGas({ calls: [{ to: input.token, data }] });
      return null;
    } catch (error) {
      const revert = error.walk((cause) => cause.code === -32521);
      return { code: revert?.code, text: error.message };
    }
  });
}

// At the same time: each waits for blocks.
await Promise.all(input.accounts.map(use));
finish();
