// What the client scripts share: their input from standard input, and a report of their steps on standard output.
//
// A step that fails is reported as such and the next one runs. tests/support/javascript.py reads the report; the tests
// compare what the client saw with what the node says. Big integers are reported as decimal text.

import { readFileSync } from "node:fs";

export const input = JSON.parse(readFileSync(0, "utf8"));

const steps = {};

export async function step(name, work) {
  try {
    const value = await work();
    steps[name] = { value: value === undefined ? null : value };
  } catch (error) {
    steps[name] = { error: describe(error) };
  }
}

// An error, and what caused it: clients wrap what they were told more than once.
export function describe(error) {
  return {
    name: error?.name,
    message: error?.shortMessage ?? error?.message ?? String(error),
    code: error?.code,
    details: error?.stack?.split("\n").slice(0, 12),
  };
}

export function finish() {
  const plain = (_, value) => (typeof value === "bigint" ? value.toString() : value);
  process.stdout.write(JSON.stringify(steps, plain) + "\n", () => process.exit(0));
}

// The first true value of a question asked again and again, for what comes with the next block.
export async function eventually(ask, seconds = 20) {
  const endsAt = Date.now() + seconds * 1000;
  for (;;) {
    const found = await ask();
    if (found) return found;
    if (Date.now() > endsAt) throw new Error(`waited ${seconds} seconds in vain`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
