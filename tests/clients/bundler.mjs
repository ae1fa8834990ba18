// permissionless and viem's bundler client, as their users have them: an account of each version of the entry point is
// created by its first operation, estimated, sent and waited for; then it sends a second one.

import { toSimpleSmartAccount } from "permissionless/accounts";
import { createPublicClient, http } from "viem";
import { createBundlerClient } from "viem/account-abstraction";
import { generatePrivateKey, privateKeyToAccount } from "viem/accounts";
import { hardhat } from "viem/chains";
import { finish, input, step } from "./report.mjs";

const headers = { "X-API-Key": input.key };
const transport = (url) => http(url, { fetchOptions: { headers } });
const client = createPublicClient({ chain: hardhat, transport: transport(input.rpc), pollingInterval: 100 });
const bundler = createBundlerClient({
  client,
  chain: hardhat,
  transport: transport(input.bundler),
  pollingInterval: 100,
});

await step("chain id", () => bundler.getChainId());
await step("entry points", () => bundler.getSupportedEntryPoints());

for (const [version, { entryPoint, factory }] of Object.entries(input.versions)) {
  const owner = privateKeyToAccount(generatePrivateKey());
  const account = await toSimpleSmartAccount({
    client,
    owner,
    entryPoint: { address: entryPoint, version },
    factoryAddress: factory,
  });
  await client.request({ method: "hardhat_setBalance", params: [account.address, "0xde0b6b3a7640000"] });
  const calls = [{ to: owner.address, value: 1n }];
  await step(`${version} address`, () => account.address);
  await step(`${version} estimate`, () => bundler.estimateUserOperationGas({ account, calls }));
  for (const place of ["first", "second"]) {
    await step(`${version} ${place}`, async () => {
      const hash = await bundler.sendUserOperation({ account, calls });
      const receipt = await bundler.waitForUserOperationReceipt({ hash, timeout: 40_000 });
      const found = await bundler.getUserOperation({ hash });
      return {
        hash,
        success: receipt.success,
        sender: receipt.sender,
        nonce: receipt.nonce,
        transaction: receipt.receipt.transactionHash,
        foundIn: found.transactionHash,
        entryPoint: found.entryPoint,
      };
    });
  }
  await step(`${version} refused`, async () => {
    const poor = await toSimpleSmartAccount({
      client,
      owner,
      index: 1n,
      entryPoint: { address: entryPoint, version },
      factoryAddress: factory,
    });
    try {
      await bundler.sendUserOperation({ account: poor, calls: [{ to: owner.address, value: 0n }] });
    } catch (error) {
      return { name: error.name, causes: [error.cause?.name, error.cause?.cause?.name], text: error.message };
    }
    return null;
  });
}

finish();
