"""How much memory a model takes, computed from its configuration: its weights, and its cache for each token."""
