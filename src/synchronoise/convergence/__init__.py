"""Theorem 1.1 measured: the finite transformer and its limit on the same randomness (THEORY §3)."""
