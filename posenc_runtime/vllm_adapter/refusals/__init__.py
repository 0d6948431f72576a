"""Refuses features that are not served, and says why. ``engine.refuse_unsupported`` calls most other checks."""
