"""The `pfge` command: one file a subcommand."""
