"""Tables of results, and the formats in which they are shown."""
