"""What an ensemble is worth on data."""
