import { ponder } from "ponder:registry";
import { transfers } from "ponder:schema";

ponder.on("Token:Transfer", async ({ event, context }) => {
  await context.db.insert(transfers).values({
    id: `${event.block.number}-${event.log.logIndex}`,
    contract: event.log.address,
    sender: event.args.sender,
    receiver: event.args.receiver,
    amount: event.args.amount,
    block: event.block.number,
    hash: event.block.hash,
    transaction: event.transaction.hash,
    timestamp: event.block.timestamp,
  });
});
