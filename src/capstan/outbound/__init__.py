"""The one way out to addresses that a user chose: webhook targets, token metadata, price sources."""
