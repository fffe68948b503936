"""Stochastic scaling limits of deep transformers, and their synchronization by noise."""
