"""Published data sets, read from the files in which they come."""
