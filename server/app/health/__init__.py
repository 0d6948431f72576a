"""Whether a server lives, takes requests, and generates; and what it answers while it drains."""
