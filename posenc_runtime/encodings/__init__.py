"""Position encodings as mathematics: torch and the standard library only."""
