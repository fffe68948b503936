"""Attention as a drift of the tokens, one class each (THEORY §1).

Every attention is called as ``attention(x, weights=None, at=None)`` and returns Attn_X at the points
``at`` (default: at the tokens themselves).  Tokens may carry weights w_j of sum 1; without them every token weighs
the same.  Its parameters are fixed over the layers, or redrawn every few layers by `RandomAttention`.

=========================  ==================================================================  =========
attention                  a(x_i, X_j)                                                         symmetric
=========================  ==================================================================  =========
`SoftmaxAttention`         w_j e^{<Qx,KX_j>}, rows normalised to sum 1                          yes
`UnnormalisedAttention`    w_j e^{<Qx,KX_j>}                                                    yes
`L2Attention`              w_j e^{-|Qx-KX_j|²}, rows normalised to sum 1                        yes
`SinkhornAttention`        w_j e^{f(x)+<Qx,KX_j>+g_j}, rows and columns normalised              yes
`CausalAttention`          softmax over j <= i                                                  no
`MultiHeadAttention`       the sum of its heads                                                 if all are
=========================  ==================================================================  =========
"""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ._arrays import Array, Float, Gram, PRNGKey, Tokens, Weights
from .errors import UserError
from .randomness import Role, role_key

# Entries of the mixing matrix that are held at once, and the largest |β| whose e^{-2|β|} float32 holds with ease.
BLOCK = 2**22
LARGEST_PLAIN_BETA = 30.0


class Attention(eqx.Module):
    """A drift Attn_X(x) of the tokens.  Abstract.

    ``symmetric`` says that permuting the tokens permutes the output, so that equal tokens stay equal; ``rowwise`` that
    the output at a point depends on it and on all tokens alone, so that memory need not hold all pairs.
    """

    symmetric: ClassVar[bool]
    rowwise: ClassVar[bool] = False

    @property
    @abstractmethod
    def dim(self) -> int | None:
        """The dimension of the tokens that the parameters are made for; None where any will do."""

    @abstractmethod
    def __call__(
        self, x: Tokens, weights: Weights | None = None, at: Float[Array, "k d"] | None = None
    ) -> Float[Array, "k d"]:
        """Attn_X at the rows of ``at``, or at the tokens."""


class MatrixAttention(Attention):
    """Attn_X(x) = Σ_j a(x, X_j) V X_j.  Abstract: a subclass chooses the mixing matrix a.

    ``bilinear`` is QᵀK and ``value`` is V, each a d×d matrix or a number c that stands for c·I.  A large
    system goes through a in blocks of rows where it is ``rowwise``: memory stays O(n).
    """

    bilinear: eqx.AbstractVar[Any]
    value: eqx.AbstractVar[Any]

    @abstractmethod
    def mixing(self, x: Tokens, at: Float[Array, "k d"], weights: Weights | None) -> Float[Array, "k n"]:
        """The matrix a(x, X_j), one row for each point of ``at`` (the object ``x`` itself for the tokens)."""

    def mixed(self, x: Tokens, at: Float[Array, "k d"], weights: Weights | None) -> Float[Array, "k d"]:
        """Σ_j a(x, X_j) X_j."""
        return self.mixing(x, at, weights) @ x

    def logits(self, x: Tokens, at: Float[Array, "k d"]) -> Float[Array, "k n"]:
        """<Q x, K X_j> for each row x of ``at``."""
        return _times(at, self.bilinear) @ x.T

    def __call__(
        self, x: Tokens, weights: Weights | None = None, at: Float[Array, "k d"] | None = None
    ) -> Float[Array, "k d"]:
        points = x if at is None else at
        rows = max(1, BLOCK // x.shape[0])
        if not self.rowwise or points.shape[0] <= rows:
            mixed = self.mixed(x, points, weights)
        else:
            mixed = jax.lax.map(lambda row: self.mixed(x, row[None], weights)[0], points, batch_size=rows)
        return _times(mixed, jnp.transpose(self.value) if jnp.ndim(self.value) == 2 else self.value)

    @property
    def dim(self) -> int | None:
        matrices = [matrix for matrix in (self.bilinear, self.value) if np.ndim(matrix) == 2]
        return matrices[0].shape[0] if matrices else None


def _times(x: Array, matrix: Any) -> Array:
    """x·matrix for rows x; a number stands for a multiple of the identity."""
    return x @ matrix if jnp.ndim(matrix) == 2 else x * matrix


def _plain(beta: float, query: Any) -> bool:
    """Whether e^{<Qx,KX_j> - |β|} needs no row's maximum: Q and K are numbers, and tokens have length 1."""
    return query is None and abs(beta) <= LARGEST_PLAIN_BETA


def _softmax(logits: Float[Array, "k n"], weights: Weights | None) -> Float[Array, "k n"]:
    """w_j e^{l_j} / Σ_j w_j e^{l_j} in each row."""
    return jax.nn.softmax(logits if weights is None else logits + jnp.log(weights), axis=-1)


def _log_weights(weights: Weights | None, like: Float[Array, "k n"]) -> Weights:
    """log w_j, w_j = 1/n by default."""
    n = like.shape[1]
    return jnp.full(n, -np.log(n), like.dtype) if weights is None else jnp.log(weights)


class SoftmaxAttention(MatrixAttention):
    """Attn_X(x) = Σ_j w_j e^{<Qx, K X_j>} V X_j / Σ_j w_j e^{<Qx, K X_j>}   (THEORY §1).

    ``beta`` and ``scale`` mean QᵀK = β I and V = scale · I (the paper's choice; "attention scale" +1, -1, 0);
    matrices Q, K (any equal number of rows) and V (d×d) take their place when given.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> SoftmaxAttention(beta=0.0)(x).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """

    bilinear: Any
    value: Any
    plain: bool = eqx.field(static=True)  #: |<Qx, KX_j>| <= |β|, small
    symmetric = True
    rowwise = True

    def __init__(self, beta: float = 1.0, scale: float = 1.0, *, query=None, key=None, value=None):
        self.bilinear, self.value = _parameters(beta, scale, query, key, value)
        self.plain = _plain(beta, query)

    def mixing(self, x: Tokens, at: Float[Array, "k d"], weights: Weights | None) -> Float[Array, "k n"]:
        return _softmax(self.logits(x, at), weights)

    def mixed(self, x: Tokens, at: Float[Array, "k d"], weights: Weights | None) -> Float[Array, "k d"]:
        if not self.plain:
            return self.mixing(x, at, weights) @ x
        # Reductions along a row are slow on CPUs: a bound on the logits spares its maximum, a column of ones its sum.
        share = jnp.exp(self.logits(x, at) - jnp.abs(self.bilinear))
        share = share if weights is None else weights * share
        mixed = share @ jnp.concatenate([x, jnp.ones_like(x[:, :1])], axis=1)
        return mixed[:, :-1] / mixed[:, -1:]


class UnnormalisedAttention(MatrixAttention):
    """Attn_X(x) = Σ_j w_j e^{<Qx, K X_j>} V X_j with Σ w_j = 1 (w_j = 1/n by default; "USA", THEORY §1).

    Parameters as in `SoftmaxAttention`.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> UnnormalisedAttention(beta=0.0)(x).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """

    bilinear: Any
    value: Any
    symmetric = True
    rowwise = True

    def __init__(self, beta: float = 1.0, scale: float = 1.0, *, query=None, key=None, value=None):
        self.bilinear, self.value = _parameters(beta, scale, query, key, value)

    def mixing(self, x: Tokens, at: Float[Array, "k d"], weights: Weights | None) -> Float[Array, "k n"]:
        share = 1.0 / x.shape[0] if weights is None else weights
        return share * jnp.exp(self.logits(x, at))


class L2Attention(MatrixAttention):
    """Attn_X(x) = Σ_j w_j e^{-|Qx - K X_j|²} V X_j / Σ_j w_j e^{-|Qx - K X_j|²}   (THEORY §1).

    ``beta`` > 0 means Q = K = √β I, so that with tokens on the sphere it is softmax attention at 2β, and ``beta`` < 0
    means Q = -K = √|β| I.  Other parameters as in `SoftmaxAttention`.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[1.0, 0.0], [0.6, 0.8]])
    >>> bool(jnp.allclose(L2Attention(beta=1.0)(x), SoftmaxAttention(beta=2.0)(x), atol=1e-6))
    True
    """

    bilinear: Any
    value: Any
    key_square: Any  #: KᵀK
    symmetric = True
    rowwise = True

    def __init__(self, beta: float = 1.0, scale: float = 1.0, *, query=None, key=None, value=None):
        self.bilinear, self.value = _parameters(beta, scale, query, key, value)
        self.key_square = abs(float(beta)) if key is None else _array(key).T @ _array(key)

    def mixing(self, x: Tokens, at: Float[Array, "k d"], weights: Weights | None) -> Float[Array, "k n"]:
        # |Qx|² is the same for all j: the rows' normalisation takes it out.
        return _softmax(2 * self.logits(x, at) - jnp.sum(_times(x, self.key_square) * x, axis=1), weights)


class SinkhornAttention(MatrixAttention):
    """Attn_X(x_i) = Σ_j A_ij V X_j, A_ij = w_j e^{f_i + <Q x_i, K X_j> + g_j},  Σ_j A_ij = 1,  Σ_i w_i A_ij = w_j.

    Without weights A is doubly stochastic (THEORY §1).  f and g come from ``iterations`` of Sinkhorn's, in logarithms:
    for QᵀK = β I with β >= 0, where f = g, of f <- ½(f - log Σ_j ...), whose error halves each time; else of the
    alternating ones.  Other points x get the f(x) that normalises their row.  Parameters as in `SoftmaxAttention`.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> SinkhornAttention(beta=2.0).mixing(x, x, None).sum(axis=0).round(5).tolist()
    [1.0, 1.0, 1.0]
    """

    bilinear: Any
    value: Any
    iterations: int = eqx.field(static=True)
    halving: bool = eqx.field(static=True)
    symmetric = True

    def __init__(
        self, beta: float = 1.0, scale: float = 1.0, *, query=None, key=None, value=None, iterations: int = 64
    ):
        self.bilinear, self.value = _parameters(beta, scale, query, key, value)
        self.iterations, self.halving = iterations, query is None and beta >= 0

    def potential(self, logits: Gram, log_weights: Weights) -> Weights:
        """g_j, up to a constant, from the logits of the tokens with one another."""

        def rows(matrix: Gram, potential: Weights) -> Weights:
            return -jax.nn.logsumexp(matrix + potential + log_weights, axis=1)

        def halving(_: Any, g: Weights) -> Weights:
            return 0.5 * (g + rows(logits, g))

        def alternating(_: Any, g: Weights) -> Weights:
            return rows(logits.T, rows(logits, g))

        once = halving if self.halving else alternating
        return jax.lax.fori_loop(0, self.iterations, once, jnp.zeros_like(log_weights))

    def mixing(self, x: Tokens, at: Float[Array, "k d"], weights: Weights | None) -> Float[Array, "k n"]:
        logits = self.logits(x, at)
        log_weights = _log_weights(weights, logits)
        g = self.potential(self.logits(x, x), log_weights)
        return jax.nn.softmax(logits + g + log_weights, axis=-1)


class CausalAttention(MatrixAttention):
    """Attn_X(x_i) = Σ_{j<=i} w_j e^{<Q x_i, K X_j>} V X_j / Σ_{j<=i} w_j e^{<Q x_i, K X_j>}   (THEORY §1).

    The order of the tokens counts, so it is defined at the tokens only (`UserError` at other points).  With weights
    the first one must not be 0.  Parameters as in `SoftmaxAttention`.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> CausalAttention(beta=0.0)(x).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """

    bilinear: Any
    value: Any
    symmetric = False

    def __init__(self, beta: float = 1.0, scale: float = 1.0, *, query=None, key=None, value=None):
        self.bilinear, self.value = _parameters(beta, scale, query, key, value)

    def mixing(self, x: Tokens, at: Float[Array, "k d"], weights: Weights | None) -> Float[Array, "k n"]:
        if at is not x:
            raise UserError("causal attention depends on the order of the tokens", mend="evaluate it at the tokens")
        earlier = jnp.tri(x.shape[0], dtype=bool)
        return _softmax(jnp.where(earlier, self.logits(x, x), -jnp.inf), weights)


class MultiHeadAttention(Attention):
    """Attn_X(x) = Σ_h Attn^h_X(x), the sum of its heads: each with its Q, K and V (output projection included).

    >>> import jax.numpy as jnp
    >>> x, head = jnp.array([[1.0, 0.0], [0.0, 1.0]]), SoftmaxAttention(scale=0.5)
    >>> bool((MultiHeadAttention(head)(x) == head(x)).all())
    True
    """

    heads: tuple[Attention, ...]

    def __init__(self, *heads: Attention):
        if not heads:
            raise UserError("multi-head attention", got="no head", expected="at least one", mend="give its heads")
        self.heads = heads

    @property
    def symmetric(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return all(head.symmetric for head in self.heads)

    @property
    def rowwise(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return all(head.rowwise for head in self.heads)

    @property
    def dim(self) -> int | None:
        return next((head.dim for head in self.heads if head.dim is not None), None)

    def __call__(
        self, x: Tokens, weights: Weights | None = None, at: Float[Array, "k d"] | None = None
    ) -> Float[Array, "k d"]:
        first, *others = (head(x, weights, at) for head in self.heads)
        return sum(others, start=first)


def block_heads(beta: float, scale: float, dim: int, heads: int) -> MultiHeadAttention:
    """``heads`` softmax heads that share the coordinates: head h has QᵀK = β Π_h, V = scale · Π_h   (Σ_h Π_h = I).

    Π_h projects on the h-th block of dim/heads coordinates, as the usual heads of a transformer do.

    >>> len(block_heads(1.0, 1.0, dim=6, heads=3).heads)
    3
    """
    if heads < 1 or dim % heads:
        raise UserError("heads", got=heads, expected=f"a divisor of dim={dim}", mend="change --heads or --dim")
    if heads == 1:
        return MultiHeadAttention(SoftmaxAttention(beta, scale))
    blocks = np.eye(dim).reshape(heads, dim // heads, dim)
    return MultiHeadAttention(
        *(SoftmaxAttention(query=beta * block, key=block, value=scale * block.T @ block) for block in blocks)
    )


class RandomAttention(Attention):
    """Attention of a ``kind`` with random Q, K, V of ``heads`` heads, fresh every ``every`` layers.

    Per head <Qx, KX_j> = (β/√k) <Q_0 x, K_0 X_j>, V = scale · V_0/√(d·heads), k = d/heads, Q_0, K_0: k×d, V_0: d×d,
    all entries N(0, 1): <Qx, KX_j> has variance β², and |Σ_h V x| is about the scale, on the sphere.  They have the
    address (seed, replica, first layer of the group): `Transformer.drawn` draws them.

    >>> import jax
    >>> RandomAttention(SoftmaxAttention, dim=4, every=10).draw(jax.random.key(0)).bilinear.shape
    (4, 4)
    """

    kind: type[Any] = eqx.field(static=True)
    beta: float
    scale: float
    heads: int = eqx.field(static=True)
    rank: int = eqx.field(static=True)
    every: int

    def __init__(
        self, kind: type[Any], beta: float = 1.0, scale: float = 1.0, *, dim: int, heads: int = 1, every: int = 1
    ):
        _parameters(beta, scale, None, None, None)
        if heads < 1 or dim % heads:
            raise UserError("heads", got=heads, expected=f"a divisor of dim={dim}", mend="change --heads or --dim")
        if every < 1:
            raise UserError("redraw", got=every, expected="an integer >= 1", mend="use --redraw 1")
        self.kind, self.beta, self.scale = kind, float(beta), float(scale)
        self.heads, self.rank, self.every = heads, dim // heads, every

    @property
    def symmetric(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.kind.symmetric

    @property
    def rowwise(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.kind.rowwise

    @property
    def dim(self) -> int:
        return self.heads * self.rank

    def draw(self, key: PRNGKey, dtype: Any = jnp.float32) -> Attention:
        """The attention of one group of layers."""
        rank = self.rank
        normals = jax.random.normal(role_key(key, Role.ATTENTION), (self.heads, 2 * rank + self.dim, self.dim), dtype)
        root = jnp.sqrt(jnp.abs(self.beta) / rank**0.5)
        queries, keys = root * normals[:, :rank], jnp.sign(self.beta) * root * normals[:, rank : 2 * rank]
        values = self.scale / (self.dim * self.heads) ** 0.5 * normals[:, 2 * rank :]
        heads = [self.kind(query=q, key=k, value=v) for q, k, v in zip(queries, keys, values, strict=True)]
        return heads[0] if self.heads == 1 else MultiHeadAttention(*heads)

    def __call__(
        self, x: Tokens, weights: Weights | None = None, at: Float[Array, "k d"] | None = None
    ) -> Float[Array, "k d"]:
        raise UserError("random attention has no parameters before it is drawn", mend="use Transformer.drawn or draw")


def _array(matrix: Any) -> Any:
    return matrix if isinstance(matrix, jax.Array) else np.asarray(matrix)


def _parameters(beta, scale, query, key, value):
    """(QᵀK, V): the matrices when they are given, else the numbers β and scale."""
    for name, number in (("beta", beta), ("attention scale", scale)):
        if not np.isfinite(number):
            raise UserError(name, got=number, expected="a finite number", mend="change it")
    if (query is None) != (key is None):
        raise UserError("query and key", got="one of them", expected="both or neither", mend="give both matrices")
    bilinear = float(beta) if query is None else _array(query).T @ _array(key)
    value = float(scale) if value is None else _array(value)
    for name, matrix in (("QᵀK", bilinear), ("value", value)):
        if np.ndim(matrix) not in (0, 2) or (np.ndim(matrix) == 2 and len(set(np.shape(matrix))) != 1):
            raise UserError(name, got=f"shape {np.shape(matrix)}", expected="(dim, dim)", mend="give a square matrix")
    return bilinear, value
