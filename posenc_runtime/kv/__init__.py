"""Which rotation does a cached key carry, and who may read it? Decisions only: no engine, no tensors on a device."""
