"""Gas: current price estimates, gas policies, and the sponsorship of user operations."""
