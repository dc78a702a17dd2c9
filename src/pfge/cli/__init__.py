"""The `pfge` command: one file for each subcommand."""
