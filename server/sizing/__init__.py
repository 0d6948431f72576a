"""What fits on which GPUs."""
