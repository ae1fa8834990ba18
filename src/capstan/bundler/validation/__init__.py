"""Full validation of user operations by the rules of ERC-7562. `service.TracingValidator` is what the pool uses."""
