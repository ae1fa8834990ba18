"""The JSON-RPC gateway: what `POST /v1/rpc/{chain}/{network}` does between request and reply."""
