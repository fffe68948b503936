"""Noises of the layers: the random fields that move the tokens, one class each (THEORY §1, §3).

A noise is a left factor F(X), shape (n, r), drawn at an address: its increment at the tokens is F ξ with ξ standard
normal of shape (r, d).  ``noise.increment(key, x)`` is that product, to be scaled by √h.  The key is the one of a
(seed, replica, fine step); the noise folds the roles into it, so nothing is consumed.

Two faces.  Where row i of the factor depends on token i alone and r does not depend on the tokens, the increment is a
random *field* on the sphere, ``noise.field(key)``, that any set of points may evaluate.  The other noises have the
right law *at the tokens* only: they set ``in_law_only`` and refuse to be a field.

===================  ==================  =======================================  ============================
noise                face                factor                                   floor (distance, float64)
===================  ==================  =======================================  ============================
`DrawnMLP`           field               φ(U x/√d + b)/√m, drawn U                rounding, 1e-15
`FreshFeatures`      field               the same, narrow: the limit in law       rounding, 1e-15
`InLawMLP`           in law only         the same law by thin QR factors          rounding, 1e-14
`GaussianField`      in law only         Cholesky factor of κ(Gram)               half the digits, from 3e-8
`VectorNoise`        field               σ 1                                      rounding, 1e-15
`ValueNoise`         in law only         σ m_i, the outputs of an attention       rounding, 1e-14
`PrivateNoise`       in law only         σ I, not common: it keeps tokens apart   rounding, 1e-15
===================  ==================  =======================================  ============================
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from ._arrays import Array, Factor, Float, Gram, PRNGKey, Tokens
from .activations import Activation, activation
from .attention import Attention
from .errors import UserError
from .kernel import Kernel, KernelEvaluator, Series
from .randomness import Role, role_key
from .sphere import gram

# κ's numbers are data, not constants, of what is compiled: a sweep over laws compiles once.
jax.tree_util.register_dataclass(Series, ["numbers"], ["in_powers"])
jax.tree_util.register_dataclass(KernelEvaluator, ["scale", "constants", "even", "odd"], ["kinked"])

# What is left of a diagonal entry is zero below so many ε of it, for any number of tokens: more would blur close
# tokens further apart, less would take rounding for noise.
PIVOT_TOLERANCE = 4


class Noise(eqx.Module):
    """A centred random increment with covariance F Fᵀ over tokens.  Abstract.

    ``common`` noises move equal tokens equally; ``in_law_only`` noises are no field (see the module).
    """

    common: ClassVar[bool]

    @abstractmethod
    def factor(self, key: PRNGKey, x: Tokens) -> Factor:
        """The left factor F at the tokens, shape (n, r)."""

    @property
    @abstractmethod
    def in_law_only(self) -> bool:
        """Whether the noise is no field, only the right law at the tokens."""

    @abstractmethod
    def floor(self, dtype: Any) -> float:
        """Distances between tokens below this are rounding, not dynamics."""

    @property
    @abstractmethod
    def route(self) -> str:
        """How the noise is computed, in words: the result of a run names it."""

    def increment(self, key: PRNGKey, x: Tokens) -> Tokens:
        """F ξ at the tokens: the noise over a unit of time."""
        factor = self.factor(key, x)
        shape = (factor.shape[1], x.shape[1])
        return factor @ jax.random.normal(role_key(key, Role.OUTPUT), shape, x.dtype)

    def field(self, key: PRNGKey) -> Callable[[Tokens], Tokens]:
        """The noise at this address as a function that any points on the sphere may evaluate."""
        if self.in_law_only:
            raise UserError(
                f"{type(self).__name__} has the right law at the tokens only, so it is no field that two sets of "
                "tokens can share",
                mend="use DrawnMLP or FreshFeatures",
            )
        return lambda points: self.increment(key, points)

    def weighted(self, weights: Any) -> "Noise":
        """The same noise of tokens with these weights; it differs only where tokens interact through the noise."""
        return self


class MLP(eqx.Module):
    """The law of one random MLP layer G(y) = m^{-1/2} W φ(d^{-1/2} U y + b_U) + b_W   (THEORY §1).

    U, W have N(0,1) entries, b_U ~ N(0, σ_U² I), b_W ~ N(0, σ_W² I), all fresh at every layer.

    >>> round(MLP("relu", dim=64).kernel().kappa_1, 7)  # 1/(2d)
    0.0078125
    """

    activation: Activation = eqx.field(static=True)
    dim: int = eqx.field(static=True)
    sigma_u: float
    sigma_w: float

    def __init__(self, activation_: str | Activation, dim: int, sigma_u: float = 0.0, sigma_w: float = 0.0):
        self.activation = activation(activation_)
        self.dim, self.sigma_u, self.sigma_w = dim, float(sigma_u), float(sigma_w)
        if dim < 2:
            raise UserError("dim", got=dim, expected="an integer >= 2", mend="use --dim 2 or more")
        for name, value in (("sigma_u", sigma_u), ("sigma_w", sigma_w)):
            if not (np.isfinite(value) and value >= 0):
                raise UserError(name, got=value, expected="a finite number >= 0", mend="change it")

    def kernel(self) -> Kernel:
        """κ of this law (THEORY §2)."""
        return Kernel(self.activation, self.dim, self.sigma_u, self.sigma_w)

    def inputs(self, x: Tokens) -> Float[Array, "n d_plus_1"]:
        """[x/√d, σ_U 1]: the pre-activations of a neuron are these rows times standard normals."""
        return _append_column(x / math.sqrt(self.dim), self.sigma_u)

    def features(self, preactivations: Float[Array, "n m"]) -> Float[Array, "n m_plus_1"]:
        """[φ(z)/√m, σ_W 1]: the left factor of the layer given its hidden neurons."""
        hidden = self.activation(preactivations, jnp) / math.sqrt(preactivations.shape[1])
        return _append_column(hidden, self.sigma_w)


def _append_column(matrix: Float[Array, "n k"], value: float | Array) -> Float[Array, "n k_plus_1"]:
    column = jnp.full((matrix.shape[0], 1), value, matrix.dtype)
    return jnp.concatenate([matrix, column], axis=1)


class DrawnMLP(Noise):
    """A finite-width MLP by its drawn weights: G of THEORY §1 as written, a random field."""

    mlp: MLP
    width: int = eqx.field(static=True)
    common = True

    def __check_init__(self):
        _check_width(self.width)

    def factor(self, key: PRNGKey, x: Tokens) -> Factor:
        normals = jax.random.normal(role_key(key, Role.HIDDEN), (self.width, self.mlp.dim), x.dtype)
        bias = jax.random.normal(role_key(key, Role.HIDDEN_BIAS), (self.width, 1), x.dtype)
        return self.mlp.features(self.mlp.inputs(x) @ jnp.concatenate([normals, bias], axis=1).T)

    @property
    def in_law_only(self) -> bool:
        return False

    def floor(self, dtype: Any) -> float:
        return 8 * float(jnp.finfo(dtype).eps)

    @property
    def route(self) -> str:
        return f"width {self.width}, weights drawn"


class FreshFeatures(DrawnMLP):
    """The limit of infinite width *in law*, by narrow fresh layers: their covariance is κ at every width  (THEORY §3).

    The cost is linear in the tokens, which are followed down to machine precision as they merge; the weak error is
    O((1 + c/width) T/L).
    """

    width: int = eqx.field(static=True, default=16)

    @property
    def route(self) -> str:
        return f"Gaussian field, {self.width} fresh features"


class InLawMLP(Noise):
    """A finite-width MLP, exactly in law at the tokens, without drawing its big matrices (ours, THEORY §1).

    Given the tokens, the pre-activations of the neurons are iid N(0, Gram/d + σ_U² 11ᵀ); given the hidden layer the
    outputs are iid N(0, H Hᵀ/m + σ_W² 11ᵀ).  Both are sampled through the triangular factor of a thin QR
    decomposition of the feature rows (never of a covariance, which would lose half the digits), or by drawing U or W
    where that takes fewer normals: min(n, d+1)·m + min(n, m+1)·d of them.
    """

    mlp: MLP
    width: int = eqx.field(static=True)
    common = True

    def __check_init__(self):
        _check_width(self.width)

    def factor(self, key: PRNGKey, x: Tokens) -> Factor:
        rows = _compress(self.mlp.inputs(x))
        normals = jax.random.normal(role_key(key, Role.HIDDEN), (rows.shape[1], self.width), x.dtype)
        return _compress(self.mlp.features(rows @ normals))

    @property
    def in_law_only(self) -> bool:
        return True

    def floor(self, dtype: Any) -> float:
        return 64 * float(jnp.finfo(dtype).eps)

    @property
    def route(self) -> str:
        return f"width {self.width}, exact in law"


def _check_width(width: int) -> None:
    if width < 1:
        raise UserError("width", got=width, expected="an integer >= 1 or inf", mend="use --width 512")


def _compress(rows: Float[Array, "n k"]) -> Float[Array, "n r"]:
    """Rows with the same Gram matrix and at most n columns: B = Rᵀ Qᵀ from the QR decomposition of Bᵀ."""
    n, k = rows.shape
    return rows if k <= n else jnp.linalg.qr(rows.T, mode="r").T


class GaussianField(Noise):
    """The limit of infinite width: a Gaussian field with covariance κ(<x,y>) I_d, at the tokens   (THEORY §3).

    F is the Cholesky factor of κ(Gram), rank-tolerant: where the tokens already cover a direction its column is zero,
    and nothing is added to the diagonal (that would be private noise).  A route through a covariance loses half the
    digits: distances below 2 √(ε κ(1)/κ'(1)), ε the rounding of the dtype, are lost (ReLU without biases: 3e-8 in
    float64, 7e-4 in float32; sigmoid, d = 64: 16 times as much).  Where κ is smooth and tokens are many for
    their dimension, small pivots lose more: tanh, d = 3, float32, distances below 0.03 at 64 tokens, 0.13 at 200.  A
    run that will synchronise uses narrow fresh features instead (`Transformer.limit`).  The first tokens see the same
    field for any number of tokens after them.
    """

    mlp: MLP
    kappa_1: float
    dkappa_1: float
    evaluators: tuple[KernelEvaluator, KernelEvaluator]  #: of κ in float32 and in float64
    common = True

    def __init__(self, mlp: MLP):
        self.mlp = mlp
        kernel = mlp.kernel()
        self.kappa_1, self.dkappa_1 = kernel.kappa_1, kernel.dkappa_1
        self.evaluators = (kernel.evaluator("float32"), kernel.evaluator("float64"))

    def covariance(self, x: Tokens) -> Gram:
        """κ(<x_i, x_j>), κ(1) on the diagonal."""
        covariance: Gram = self.evaluators[x.dtype == jnp.float64](gram(x), jnp)
        return jnp.where(jnp.eye(x.shape[0], dtype=bool), self.kappa_1, covariance)

    def factor(self, key: PRNGKey, x: Tokens) -> Factor:
        return semidefinite_cholesky(self.covariance(x))

    @property
    def in_law_only(self) -> bool:
        return True

    def floor(self, dtype: Any) -> float:
        # The pivot of a token at distance r from another one is κ'(1) r²: where the factor takes it for zero.
        numbers = jnp.finfo(dtype)
        share = self.kappa_1 / max(self.dkappa_1, float(numbers.tiny))
        return min(2.0, math.sqrt(PIVOT_TOLERANCE * float(numbers.eps) * share))

    @property
    def route(self) -> str:
        return "Gaussian field, Cholesky factor"


def semidefinite_cholesky(covariance: Gram) -> Gram:
    """Lower-triangular F with F Fᵀ = K for a positive semi-definite K of any rank, without pivoting or shift.

    Column j is zero when what is left of K_jj is within rounding of zero: row j is then spanned by the rows before.
    Blocks of columns: their corner one column at a time, the rows below it by substitution.

    >>> import jax.numpy as jnp
    >>> semidefinite_cholesky(jnp.ones((2, 2))).tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    n = covariance.shape[0]
    tolerance = PIVOT_TOLERANCE * float(jnp.finfo(covariance.dtype).eps) * jnp.diagonal(covariance)
    block = 16 if n <= 64 else 32  # measured
    if n <= block:
        return _cholesky_corner(covariance, tolerance)
    factor = jnp.zeros_like(covariance)
    for first in range(0, n, block):
        last = min(first + block, n)
        left = covariance[first:, first:last] - factor[first:, :first] @ factor[first:last, :first].T
        corner = _cholesky_corner(left[: last - first], tolerance[first:last])
        pivots = jnp.diagonal(corner) > 0
        # A one for each zero pivot lets the substitution pass it; its column is thrown away.
        solvable = corner + jnp.diag(jnp.where(pivots, 0, 1).astype(corner.dtype))
        below = solve_triangular(solvable, left[last - first :].T, lower=True).T
        factor = factor.at[first:last, first:last].set(corner)
        factor = factor.at[last:, first:last].set(jnp.where(pivots, below, 0))
    return factor


def _cholesky_corner(covariance: Gram, tolerance: Float[Array, " n"]) -> Gram:
    """`semidefinite_cholesky` one column at a time; a pivot up to its tolerance counts as zero."""
    row = jnp.arange(covariance.shape[0])

    def column(j: Array, factor: Gram) -> Gram:
        left = covariance[:, j] - factor @ factor[j]
        pivot = left[j]
        positive = pivot > tolerance[j]
        scale = jnp.where(positive, jax.lax.rsqrt(jnp.where(positive, pivot, 1)), 0)
        return factor.at[:, j].set(jnp.where(row >= j, left * scale, 0))

    return jax.lax.fori_loop(0, row.shape[0], column, jnp.zeros_like(covariance))


class PrivateNoise(Noise):
    """Independent Brownian motion σ dB_i for every token: F = σ I, covariance σ² δ_ij   (THEORY §3).

    Equal tokens part: nothing synchronises (THEORY §5).

    >>> import jax, jax.numpy as jnp
    >>> PrivateNoise(0.5).factor(jax.random.key(0), jnp.eye(2)).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """

    sigma: float
    common = False

    def __check_init__(self):
        _check_sigma(self.sigma)

    def factor(self, key: PRNGKey, x: Tokens) -> Factor:
        return self.sigma * jnp.eye(x.shape[0], dtype=x.dtype)

    @property
    def in_law_only(self) -> bool:
        return True

    @property
    def route(self) -> str:
        return "private noise"

    def floor(self, dtype: Any) -> float:
        return 8 * float(jnp.finfo(dtype).eps)


class VectorNoise(Noise):
    """One Brownian vector σ dB for all tokens: F = σ 1, covariance σ² everywhere   (THEORY §3).

    >>> import jax, jax.numpy as jnp
    >>> VectorNoise(0.5).factor(jax.random.key(0), jnp.eye(2)).tolist()
    [[0.5], [0.5]]
    """

    sigma: float
    common = True

    def __check_init__(self):
        _check_sigma(self.sigma)

    def factor(self, key: PRNGKey, x: Tokens) -> Factor:
        return jnp.full((x.shape[0], 1), self.sigma, x.dtype)

    @property
    def in_law_only(self) -> bool:
        return False

    @property
    def route(self) -> str:
        return "one Brownian vector"

    def floor(self, dtype: Any) -> float:
        return 8 * float(jnp.finfo(dtype).eps)


class ValueNoise(Noise):
    """Random value matrices: σ dB m_i, B: d×d, m_i = Attn_X(X_i): F = σ (m_i), covariance σ² <m_i, m_j>   (THEORY §3).

    "Interacting": a token's increment depends on the others through m_i.  For random value matrices with N(0, σ²)
    entries the attention has V = I (`scale` 1).

    >>> import jax, jax.numpy as jnp
    >>> from synchronoise import SoftmaxAttention
    >>> ValueNoise(SoftmaxAttention(beta=0.0), 2.0).factor(jax.random.key(0), jnp.eye(2)).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """

    attention: Attention
    sigma: float
    weights: Any = None

    def __check_init__(self):
        _check_sigma(self.sigma)

    @property
    def common(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.attention.symmetric

    def factor(self, key: PRNGKey, x: Tokens) -> Factor:
        return self.sigma * self.attention(x, self.weights)

    @property
    def in_law_only(self) -> bool:
        return True

    def floor(self, dtype: Any) -> float:
        return 64 * float(jnp.finfo(dtype).eps)

    @property
    def route(self) -> str:
        return f"random value matrices, {type(self.attention).__name__}"

    def weighted(self, weights: Any) -> Noise:
        return ValueNoise(self.attention, self.sigma, weights)


def _check_sigma(sigma: Any) -> None:
    if isinstance(sigma, float | int) and not (np.isfinite(sigma) and sigma >= 0):
        raise UserError("deviation of a noise", got=sigma, expected="a finite number >= 0", mend="for example 0.5")


class SumNoise(Noise):
    """The sum of independent noises: their factors side by side.  A field when all of them are."""

    parts: tuple[Noise, ...]

    def __init__(self, *parts: Noise):
        if not parts:
            raise UserError("a sum of noises", got="nothing", expected="at least one noise", mend="name one")
        self.parts = parts

    @property
    def common(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return all(part.common for part in self.parts)

    @property
    def in_law_only(self) -> bool:
        return any(part.in_law_only for part in self.parts)

    @property
    def width(self) -> int:
        """The widest hidden layer of a part, or 1: what a step has to hold in memory."""
        return max(getattr(part, "width", 1) for part in self.parts)

    def factor(self, key: PRNGKey, x: Tokens) -> Factor:
        keys = [jax.random.fold_in(role_key(key, Role.PART), index) for index in range(len(self.parts))]
        return jnp.concatenate([part.factor(k, x) for part, k in zip(self.parts, keys, strict=True)], axis=1)

    def floor(self, dtype: Any) -> float:
        return max(part.floor(dtype) for part in self.parts)

    @property
    def route(self) -> str:
        return " + ".join(part.route for part in self.parts)

    def weighted(self, weights: Any) -> Noise:
        return SumNoise(*(part.weighted(weights) for part in self.parts))


class ScaledNoise(Noise):
    """A noise times a number: c F, covariance c² F Fᵀ   (THEORY §3).

    >>> import jax, jax.numpy as jnp
    >>> ScaledNoise(VectorNoise(0.5), -2.0).factor(jax.random.key(0), jnp.eye(2)).tolist()
    [[-1.0], [-1.0]]
    """

    noise: Noise
    by: float

    @property
    def common(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.noise.common

    @property
    def in_law_only(self) -> bool:
        return self.noise.in_law_only

    @property
    def width(self) -> int:
        """That of the noise: what a step has to hold in memory."""
        return getattr(self.noise, "width", 1)

    def factor(self, key: PRNGKey, x: Tokens) -> Factor:
        return self.by * self.noise.factor(key, x)

    def floor(self, dtype: Any) -> float:
        return self.noise.floor(dtype)

    @property
    def route(self) -> str:
        return f"{self.by:g} × ({self.noise.route})"

    def weighted(self, weights: Any) -> Noise:
        return ScaledNoise(self.noise.weighted(weights), self.by)


def mlp_noise(mlp: MLP, width: float | int, tokens: int) -> Noise:
    """The noise of layers of this width (``math.inf``: the Gaussian field), by the route that draws fewer normals.

    The choice depends on the sizes alone, so it is made once per run.
    """
    if width == float("inf"):
        return GaussianField(mlp)
    if width != int(width):
        raise UserError("width", got=width, expected="an integer >= 1 or inf", mend="use --width 512")
    width, dim = int(width), mlp.dim
    in_law = min(tokens, dim + 1) * width + min(tokens, width + 1) * dim
    drawn = 2 * width * dim + width + dim
    return InLawMLP(mlp, width) if 2 * in_law < drawn else DrawnMLP(mlp, width)
