// viem's paymaster client and permissionless.js with the address of the bundler as that of an ERC-7677 paymaster, as an
// application uses them. The accounts have no money. For each entry point: the first operation by viem, the second by
// permissionless, and one that the policy does not allow.

import { createPublicClient, defineChain, encodeFunctionData, http, parseAbi } from "viem";
import { createBundlerClient, createPaymasterClient } from "viem/account-abstraction";
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
const paymaster = createPaymasterClient({ transport });
const paymasterContext = { policyId: input.policy };
const owner = privateKeyToAccount(input.private_key);
const abi = parseAbi(["function mint(address to, uint256 amount)"]);
const minting = (to, amount) => ({
  to: input.token,
  data: encodeFunctionData({ abi, functionName: "mint", args: [to, amount] }),
});

async function use({ version, entryPoint, factory, index, receiver }) {
  const named = (name) => `${version} ${name}`;
  const account = await toSimpleSmartAccount({
    client,
    owner,
    entryPoint: { address: entryPoint, version },
    factoryAddress: factory,
    index: BigInt(index),
  });
  const shared = { account, client, chain, paymaster, paymasterContext, pollingInterval: 100 };
  const bundler = createBundlerClient({ ...shared, transport });
  await step(named("address"), () => account.getAddress());
  let hash;
  await step(named("send"), async () => (hash = await bundler.sendUserOperation({ calls: [minting(receiver, 5n)] })));
  await step(named("receipt"), () => bundler.waitForUserOperationReceipt({ hash, timeout: 60_000 }));
  const smart = createSmartAccountClient({ ...shared, bundlerTransport: transport });
  await step(named("transaction"), () => smart.sendTransaction(minting(receiver, 7n)));
  await step(named("refused"), async () => {
    try {
      await bundler.sendUserOperation({ calls: [{ to: receiver, value: 0n, data: "0x" }] });
      return null;
    } catch (error) {
      return { code: error.walk((cause) => cause.code === -32501)?.code, text: error.message };
    }
  });
}

// At the same time: each waits for blocks.
await Promise.all(input.accounts.map(use));
finish();
