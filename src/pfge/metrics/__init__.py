"""How good predictions are, how uncertain, and which differences are more than noise."""
