// viem's own encoding of user operations: the hash of each, and what viem would send to a bundler.

import { formatUserOperationRequest, getUserOperationHash } from "viem/account-abstraction";
import { finish, input, step } from "./report.mjs";

const NUMBERS = [
  "nonce",
  "callGasLimit",
  "verificationGasLimit",
  "preVerificationGas",
  "maxFeePerGas",
  "maxPriorityFeePerGas",
  "paymasterVerificationGasLimit",
  "paymasterPostOpGasLimit",
];

// From JSON-RPC to viem's own types.
function toViem({ eip7702Auth, ...fields }) {
  const operation = { ...fields };
  for (const name of NUMBERS) if (name in operation) operation[name] = BigInt(operation[name]);
  if (eip7702Auth)
    operation.authorization = {
      address: eip7702Auth.address,
      chainId: Number(eip7702Auth.chainId),
      nonce: Number(eip7702Auth.nonce),
      r: eip7702Auth.r,
      s: eip7702Auth.s,
      yParity: Number(eip7702Auth.yParity),
    };
  return operation;
}

for (const [index, { version, entryPoint, fields }] of input.operations.entries()) {
  const userOperation = toViem(fields);
  await step(`hash ${index}`, () =>
    getUserOperationHash({
      chainId: input.chainId,
      entryPointAddress: entryPoint,
      entryPointVersion: version,
      userOperation,
    }),
  );
  await step(`request ${index}`, () => formatUserOperationRequest(userOperation));
}

finish();
