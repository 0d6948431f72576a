"""Our sections of the settings: checked, completed from the checkpoint, and turned into a deployment."""
