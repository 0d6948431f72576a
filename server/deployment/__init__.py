"""The settings of a deployment: where they are found, read, and checked."""
