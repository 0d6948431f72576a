"""What is not served, and why: ``engine.refuse_unsupported`` is asked at start-up, and asks the rest."""
