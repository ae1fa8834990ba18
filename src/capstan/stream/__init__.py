"""The durable side of the canonical stream: one transaction per block writes the consumers' rows and the cursor."""
