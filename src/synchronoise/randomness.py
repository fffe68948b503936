"""Random streams with addresses: a draw is looked up, never consumed.

Every draw of an experiment has the address **(seed, replica, fine step, role)**, and its key is

    fold_in(fold_in(fold_in(key(seed), replica), step), role).

So the same address gives the same numbers whatever else the run does: more tokens or fewer, another
start, another attention, chunks, more replicas, a resumed run.  The *fine step* is the finest time
index of the experiment; a coarse increment is the sum of the fine ones at its addresses.  Arrays are
drawn row by row (JAX's partitionable threefry counts in row-major order), so an array with fewer rows
is the beginning of the longer one.
"""

from __future__ import annotations

from enum import IntEnum

import jax
import jax.numpy as jnp
import numpy as np

from ._arrays import Array, Key, PRNGKey
from .errors import UserError


class Role(IntEnum):
    """What a draw is for: the last part of an address."""

    START = 0  #: the tokens at time zero
    HIDDEN = 1  #: U, the first layer of an MLP (or the pre-activations in law)
    HIDDEN_BIAS = 2  #: b_U
    OUTPUT = 3  #: ξ of the left factor: W of an MLP and its b_W
    PART = 4  #: one of the noises of a sum
    COUPLED = 5  #: what a coupling draws beyond the noise it couples to
    ATTENTION = 6  #: Q, K and V of random attention


def replica_keys(seed: int, replicas: int, first: int = 0) -> Key[Array, " replicas"]:
    """Keys of the replicas ``first, ..., first + replicas - 1`` of an experiment, shape ``(replicas,)``.

    >>> import jax
    >>> few, many = replica_keys(7, 2), replica_keys(7, 5)
    >>> bool((jax.random.key_data(few) == jax.random.key_data(many)[:2]).all())
    True
    """
    if not 0 <= seed < 2**32:
        raise UserError("seed", got=seed, expected="an integer from 0 to 4294967295", mend="use --seed 0")
    root = jax.random.key(seed)
    return jax.vmap(lambda replica: jax.random.fold_in(root, replica))(jnp.arange(first, first + replicas))


def lanes(first: int, size: int, replicas: int) -> np.ndarray:
    """The replicas in ``size`` lanes from ``first`` on; beyond the last one it is repeated, to be thrown away.

    >>> lanes(4, 4, replicas=6).tolist()
    [4, 5, 5, 5]
    """
    return np.minimum(np.arange(first, first + size), replicas - 1)


def step_key(replica_key: PRNGKey, step: Array | int) -> PRNGKey:
    """Key of one fine step of one replica; a noise folds its role into it."""
    return jax.random.fold_in(replica_key, step)


def role_key(key: PRNGKey, role: Role) -> PRNGKey:
    """Key of one role within a step."""
    return jax.random.fold_in(key, int(role))


def address(seed: int, replica: int, step: int, role: Role) -> PRNGKey:
    """The key at one full address.

    >>> import jax
    >>> key = address(0, 3, 12, Role.OUTPUT)
    >>> same = role_key(step_key(replica_keys(0, 5)[3], 12), Role.OUTPUT)
    >>> bool((jax.random.key_data(key) == jax.random.key_data(same)).all())
    True
    """
    return role_key(step_key(replica_keys(seed, 1, first=replica)[0], step), role)
