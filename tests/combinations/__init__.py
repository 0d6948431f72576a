"""Which features are served with scales and at read time: the tables of ``docs/limits.md``, from what start-up refuses.

``python -m tests.combinations`` writes the tables (``make combinations``).
"""
