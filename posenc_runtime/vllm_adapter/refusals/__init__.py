"""What is not served, and why. ``engine.refuse_unsupported`` checks a whole engine; it calls most other checks."""
