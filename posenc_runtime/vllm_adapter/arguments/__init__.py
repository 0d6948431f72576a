"""From a deployment to vLLM's own arguments, and how refusals of arguments are worded."""
