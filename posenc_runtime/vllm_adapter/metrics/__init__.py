"""Our metrics, and how counts come from the engine to them."""
