// The configuration of the development chain. run.js points HARDHAT_CONFIG here; install.py does not copy it.
// It must not require anything: the packages live elsewhere, in the directory named by CAPSTAN_DEVNET_PROJECT.
module.exports = {
  solidity: "0.8.26", // Never used: nothing is compiled here. Hardhat wants a version.
  // Hardhat looks for artifacts and caches below this root; it finds none and writes none.
  paths: { root: process.env.CAPSTAN_DEVNET_PROJECT },
  networks: {
    hardhat: {
      chainId: Number(process.env.CAPSTAN_DEVNET_CHAIN_ID),
      hardfork: "osaka",
      blockGasLimit: 60_000_000,
      // As on a real chain: a transaction waits in the mempool for the next block, and failing ones are mined too.
      mining: { auto: false, interval: Number(process.env.CAPSTAN_DEVNET_BLOCK_TIME_MS) },
      throwOnTransactionFailures: false,
      // Without this, a second block within one second moves the chain's clock ahead of the wall clock for good.
      allowBlocksWithSameTimestamp: true,
      allowUnlimitedContractSize: false,
      loggingEnabled: false,
      accounts: {
        mnemonic: process.env.CAPSTAN_DEVNET_MNEMONIC,
        count: Number(process.env.CAPSTAN_DEVNET_ACCOUNTS),
        accountsBalance: "10000000000000000000000",
      },
    },
  },
};
