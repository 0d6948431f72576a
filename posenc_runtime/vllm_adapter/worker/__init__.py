"""What happens in a worker before a forward: blocks get their scales, and cached keys are turned."""
