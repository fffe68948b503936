"""Shape words and array types, said once.

========  ==========================================================================
``n``     tokens
``d``     dimension of a token, so that tokens live on the sphere S^{d-1}
``m``     width of an MLP (hidden neurons)
``r``     rank of a noise: the columns of its left factor
``...``   leading axes, usually replicas
========  ==========================================================================

**The left-factor convention.**  Every noise acts on the tokens through a factor ``F`` of shape
``(n, r)``: the increment over a step h is √h · F ξ, with ξ of shape ``(r, d)`` standard normal.  Its
covariance over tokens is F Fᵀ, the same in each of the d coordinates.  Independent noises add by
putting their factors side by side (THEORY §3).
"""

from __future__ import annotations

from jaxtyping import Array, Float, Key

Tokens = Float[Array, "n d"]
Weights = Float[Array, " n"]
Factor = Float[Array, "n r"]
Gram = Float[Array, "n n"]
Scalar = Float[Array, ""]
PRNGKey = Key[Array, ""]

__all__ = ["Array", "Factor", "Float", "Gram", "Key", "PRNGKey", "Scalar", "Tokens", "Weights"]
