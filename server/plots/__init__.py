"""Pictures of README, docs and evaluations, all in one style."""
