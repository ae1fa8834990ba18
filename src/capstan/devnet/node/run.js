// Serves one Hardhat chain over HTTP and WebSocket on 127.0.0.1. evm.py starts it as
//   node run.js <project directory> <port>
// and keeps its stdin open. It prints one line `capstan-devnet-ready {"port":…}` when it accepts requests.
// It must not outlive its parent: it ends when stdin closes or when its parent process changes.
"use strict";

const path = require("node:path");
const { createRequire } = require("node:module");

const [projectDirectory, portText] = process.argv.slice(2);
const parentProcess = process.ppid;

function fail(error) {
  console.error(`capstan-devnet-failed ${error && error.message ? error.message : error}`);
  process.exit(1);
}

process.on("uncaughtException", fail);
process.on("unhandledRejection", fail);
for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) {
  process.on(signal, () => process.exit(0));
}

process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
process.stdin.on("error", () => process.exit(0));
// A process forked from the parent may hold a copy of the pipe, so that stdin stays open. Hence the second check.
setInterval(() => {
  if (process.ppid !== parentProcess) process.exit(0);
}, 500);

async function main() {
  process.env.HARDHAT_CONFIG = path.join(__dirname, "hardhat.config.js");
  process.env.CAPSTAN_DEVNET_PROJECT = projectDirectory;
  const requireFromProject = createRequire(path.join(projectDirectory, "package.json"));
  const hardhat = requireFromProject("hardhat");
  // Hardhat fixes the chain's clock when it reads the configuration, a moment before the chain is made, and so may
  // stay a second behind for good. Without an initial date the chain takes the wall clock.
  delete hardhat.config.networks.hardhat.initialDate;
  const server = await hardhat.run("node:create-server", {
    hostname: "127.0.0.1",
    port: Number(portText),
    provider: hardhat.network.provider,
  });
  // The chain is made on the first request. Make it before saying ready.
  await hardhat.network.provider.request({ method: "eth_blockNumber", params: [] });
  const { port } = await server.listen();
  console.log(`capstan-devnet-ready ${JSON.stringify({ port })}`);
}

main().catch(fail);
