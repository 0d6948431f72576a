"""Many requests at once, for long, and what is left of them afterwards: ``make soak``."""
