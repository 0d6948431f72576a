"""What is not served, and why. ``engine.refuse_unsupported`` runs at start-up and calls the other checks."""
