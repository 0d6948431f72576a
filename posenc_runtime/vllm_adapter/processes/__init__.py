"""The processes of an engine and of a server: how they start, heed signals, and end."""
