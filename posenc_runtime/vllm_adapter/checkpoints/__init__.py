"""What a checkpoint says of itself, in its folder or on a hub, before an engine is started."""
