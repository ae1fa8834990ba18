// The same work as the transfer index does in bench/data.py: every Transfer of one token, as a row.
import { createConfig } from "ponder";
import { http } from "viem";
import { abi } from "./abi";

export default createConfig({
  database: { kind: "pglite", directory: process.env.BENCH_DIRECTORY },
  networks: {
    dev: { chainId: 31337, transport: http(process.env.BENCH_URL), maxRequestsPerSecond: 1000, disableCache: true },
  },
  contracts: {
    Token: {
      network: "dev",
      abi,
      address: process.env.BENCH_TOKEN as `0x${string}`,
      startBlock: 0,
      endBlock: Number(process.env.BENCH_END),
    },
  },
});
