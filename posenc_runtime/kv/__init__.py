"""Bookkeeping of scales: which scale a cached key carries, and which request may read it. No engine, no device."""
