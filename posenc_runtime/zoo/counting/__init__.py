"""The counting task of CoPE's paper (arXiv:2405.18719), and small decoders trained on it, one for each encoding."""
