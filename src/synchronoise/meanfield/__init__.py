"""The mean-field limit: the SPDE (1.10) with common noise, solved by weighted tokens and on grids   (THEORY §4)."""

from .eulerian import CircleGrid, SphereGrid
from .initial import VonMisesFisher, nodes, quadrature
from .lagrangian import check_scope, lagrangian, speed
from .solve import solve
from .wasserstein import wasserstein2

__all__ = [
    "CircleGrid",
    "SphereGrid",
    "VonMisesFisher",
    "check_scope",
    "lagrangian",
    "nodes",
    "quadrature",
    "solve",
    "speed",
    "wasserstein2",
]
