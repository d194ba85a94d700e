"""A run while it trains: starting, saving, stopping, resuming and logging."""
