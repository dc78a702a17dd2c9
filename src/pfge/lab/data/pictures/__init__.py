"""Pictures that are read from files."""
