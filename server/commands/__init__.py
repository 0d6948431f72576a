"""Commands that talk to servers: a conversation, a live table, a demonstration, and evaluations."""
