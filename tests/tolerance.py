"""The tolerances of the whole project, each with where it comes from. Change one only with a paragraph in DESIGN.md."""

from __future__ import annotations

# Two float32 implementations of a two-layer model add the same products in another order. Seen: 2e-5.
LOGPROB_FLOAT32 = 1e-4

# Re-rotated keys have been rounded once more for every crossing, and their errors pass through all that follows.
LOGPROB_AFTER_CROSSING = 2e-4

# A wrong rotation must be unmistakable: logprobs of the tiny checkpoints then differ by 4 to 15.
LOGPROB_WRONG_SCALE = 1.0

# float32 has 24 bits of mantissa, transformers computes its frequencies in it with a few roundings.
INV_FREQ_RELATIVE = 1e-6
