"""What decides in the engine core: salts of arriving requests, crossings, reuse of prefixes, and the step's plan."""
