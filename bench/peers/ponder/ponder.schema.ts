import { index, onchainTable } from "ponder";

export const transfers = onchainTable(
  "transfers",
  (t) => ({
    id: t.text().primaryKey(),
    contract: t.hex().notNull(),
    sender: t.hex().notNull(),
    receiver: t.hex().notNull(),
    amount: t.bigint().notNull(),
    block: t.bigint().notNull(),
    hash: t.hex().notNull(),
    transaction: t.hex().notNull(),
    timestamp: t.bigint().notNull(),
  }),
  (table) => ({ bySender: index().on(table.sender), byReceiver: index().on(table.receiver) }),
);
