"""The deployment: settings, command line, and the HTTP application around vLLM's own OpenAI routes."""
