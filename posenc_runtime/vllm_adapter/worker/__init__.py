"""The worker's half: before each forward pass it turns cached keys and gives blocks their scales."""
