"""Training that continues bit for bit after it was stopped."""
