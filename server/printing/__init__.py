"""How commands print: words, tables, and the progress of what takes long."""
