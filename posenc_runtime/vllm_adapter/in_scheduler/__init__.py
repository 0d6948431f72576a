"""Our code in the scheduler's process: salts of arriving requests, crossings, reuse of prefixes, the step's plan."""
