"""What a checkpoint says of itself, in its folder or on a hub, and what that means for serving it."""
