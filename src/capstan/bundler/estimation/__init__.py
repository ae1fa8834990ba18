"""Estimation of the gas that user operations need. `service.GasEstimator` is what the JSON-RPC method uses."""
