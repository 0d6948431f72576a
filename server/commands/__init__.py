"""Commands that talk to a running server: a conversation, a live table, and a demonstration."""
