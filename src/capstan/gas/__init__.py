"""Gas: current price estimates. Sponsorship policies are not built yet."""
