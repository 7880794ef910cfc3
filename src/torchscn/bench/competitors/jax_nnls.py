"""jaxnnls: an interior point method for batches of non-negative problems in JAX, with smoothed gradients."""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchscn.bench.packages import Package

__all__ = ["PACKAGE", "prepare"]

PACKAGE = Package("jaxnnls", module="jaxnnls", install="jaxnnls")


def prepare(rhs: Tensor, gram: Tensor) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Two compiled functions: the codes, and the gradients of their sum."""
    import jax
    import jaxnnls

    jax.config.update("jax_enable_x64", True)
    problems = jax.numpy.asarray(gram.numpy()), jax.numpy.asarray(rhs.numpy())
    solve_all = jax.vmap(jaxnnls.solve_nnls_primal)
    codes = jax.jit(solve_all)
    gradients = jax.jit(jax.grad(lambda *inputs: solve_all(*inputs).sum(), argnums=(0, 1)))

    def run(function: Callable[..., Any]) -> Any:
        return jax.block_until_ready(function(*problems))

    runs = functools.partial(run, codes), functools.partial(run, gradients)
    for first in runs:
        first()  # compiles
    return runs
