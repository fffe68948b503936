"""The paper's table and figures, computed, with the theory laid over them (THEORY §8)."""

from synchronoise.paper.make import reproduce

__all__ = ["reproduce"]
