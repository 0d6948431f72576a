"""The sections that ask for us: checked, completed from the checkpoint, and made a deployment."""
