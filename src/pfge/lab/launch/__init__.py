"""Units of work of an experiment, and the launchers that run them."""
