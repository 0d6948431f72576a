"""The demo model: a small Llama with a trained length of 512 tokens, and everything that made it."""
