import { parseAbi } from "viem";

export const abi = parseAbi(["event Transfer(address indexed sender, address indexed receiver, uint256 amount)"]);
