"""An experiment's settings, and how they are read from TOML."""
