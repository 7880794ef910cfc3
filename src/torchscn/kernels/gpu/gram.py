"""The Gram matrix made ready, and the limits of the stopping rule, by one program each.

In plain torch this takes a hundred operations on small matrices; launching them would take longer than the solve.
"""

import triton
import triton.language as tl

__all__ = ["scale_gram", "set_limits"]

SAFETY = tl.constexpr(1.2)  # clipped codes can add a little to the error that linear algebra predicts


@triton.jit
def _finite(x):
    """Numbers that are not finite count as 0."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0)


@triton.jit
def _norms(gram_ptr, atoms, n_atoms, ridge):
    """The norms of atoms, 1 for those without energy, and whether they have any."""
    energy = _finite(tl.load(gram_ptr + atoms * (n_atoms + 1), mask=atoms < n_atoms, other=0.0)) * (1.0 + ridge)
    return tl.where(energy > 0.0, tl.sqrt(tl.where(energy > 0.0, energy, 1.0)), 1.0), energy > 0.0


@triton.jit
def scale_gram(
    gram_ptr,
    scaled_ptr,
    high_ptr,
    low_ptr,
    system_ptr,
    ratio_ptr,
    norm_ptr,
    inverse_ptr,
    own_ptr,
    about_ptr,
    n_atoms,
    width,
    padded_rows,
    ridge,
    CHUNK: tl.constexpr,
    N: tl.constexpr,
):
    """Scale atoms to unit norm.

    Writes the matrix, padded with zeros, whole and in halves; the matrix W of ``G error = W step`` for sweeps, in the
    same units; what turns it into units of codes; norms and inverse norms; and about the matrix: 0, the largest norm of
    a row; 1, the ratio of the largest norm of an atom to the smallest; 2, NaN if it is not finite; 3, relaxation.
    """
    atoms = tl.arange(0, N)
    chunk = tl.arange(0, CHUNK)
    norms, has_energy = _norms(gram_ptr, atoms, n_atoms, ridge)
    inverse = tl.where(has_energy, 1.0 / norms, 0.0)
    largest_inverse = tl.max(inverse, 0)
    own = inverse / tl.where(largest_inverse > 0.0, largest_inverse, 1.0)
    tl.store(norm_ptr + atoms, norms, mask=atoms < n_atoms)
    tl.store(inverse_ptr + atoms, inverse, mask=atoms < width)
    tl.store(own_ptr + atoms, own * own, mask=atoms < width)
    unevenness = tl.max(tl.where(has_energy, norms, 0.0), 0) * largest_inverse

    overlap = 0.0
    total = 0.0
    poison = 0.0
    for first in range(0, padded_rows, CHUNK):
        rows = first + chunk
        real = (rows < n_atoms)[:, None] & (atoms < n_atoms)[None, :]
        entries = tl.load(gram_ptr + rows[:, None] * n_atoms + atoms[None, :], mask=real, other=0.0)
        poison += tl.sum(tl.sum(entries * 0.0, 1), 0)
        row_norms, _ = _norms(gram_ptr, rows, n_atoms, ridge)
        same = rows[:, None] == atoms[None, :]
        scaled = _finite(entries) / norms[None, :] / row_norms[:, None]
        scaled = tl.where(same, tl.where(real, 1.0, 0.0), scaled)
        squares = tl.sum(scaled * scaled, 1)
        overlap = tl.maximum(overlap, tl.max(squares, 0))
        total += tl.sum(squares, 0)
        places = rows[:, None] * width + atoms[None, :]
        inside = (atoms < width)[None, :]
        leading = (scaled.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
        tl.store(scaled_ptr + places, scaled, mask=inside & (rows < width)[:, None])
        tl.store(high_ptr + places, leading, mask=inside & (rows < padded_rows)[:, None])
        tl.store(low_ptr + places, scaled - leading, mask=inside & (rows < padded_rows)[:, None])
        system_places = rows[:, None] * n_atoms + atoms[None, :]
        # The diagonal follows when the relaxation is known.
        above = tl.where(rows[:, None] < atoms[None, :], scaled, 0.0)
        tl.store(system_ptr + system_places, above, mask=real & (rows[:, None] != atoms[None, :]))
        tl.store(ratio_ptr + system_places, scaled * 0.0 + 1.0, mask=real)
        in_codes = norms[None, :] / row_norms[:, None]
        tl.store(ratio_ptr + n_atoms * n_atoms + system_places, in_codes, mask=real)
    # As torchscn.kernels.conditioning.relaxation chooses it.
    relax = 1.0 + 0.4 * tl.minimum(tl.maximum(total / n_atoms - 1.0, 0.0), 1.0)
    tl.store(system_ptr + atoms * (n_atoms + 1), 1.0 - 1.0 / relax + tl.zeros([N], tl.float32), mask=atoms < n_atoms)
    tl.store(about_ptr, tl.sqrt(overlap))
    tl.store(about_ptr + 1, unevenness)
    tl.store(about_ptr + 2, poison)
    tl.store(about_ptr + 3, relax)


@triton.jit
def _bound(power_ptr, trace, atoms, n_atoms):
    """At least the largest singular value of M, from ``(M'M / trace)^8``; at most n^(1/16) times as much."""
    powers = tl.sum(tl.load(power_ptr + atoms * (n_atoms + 1), mask=atoms < n_atoms, other=0.0), 0)
    return tl.sqrt(trace * tl.exp2(tl.log2(powers) / 8.0))


@triton.jit
def set_limits(
    power_ptr,
    trace_ptr,
    factor_ptr,
    info_ptr,
    about_ptr,
    limit_ptr,
    n_atoms,
    tol,
    promise,
    rounding,
    most_cancellation,
    N: tl.constexpr,
):
    """How long steps may be for codes to be as accurate as promised, as in cpu/library.cpp, which says why.

    Writes: 0 and 1, squares of the longest steps allowed, in units of codes and of contributions; 2, the shortest step
    that can be told from none; 3, NaN if the matrix is not finite, else 0; 4, how much codes may cancel each other, 0
    for any; 5, relaxation. A tolerance of 0 allows no step.
    """
    atoms = tl.arange(0, N)
    overlap = tl.load(about_ptr)
    uneven = tl.load(about_ptr + 1)
    rounding_of_matrix = 1.1920929e-07 * n_atoms
    worst = 1.0 / rounding_of_matrix
    pivots = tl.load(factor_ptr + atoms * (n_atoms + 1), mask=atoms < n_atoms, other=1.0)
    least = tl.min(tl.where(pivots == pivots, pivots * pivots, 0.0), 0)
    regular = (tl.load(info_ptr) == 0) & (least > 4.0 * rounding_of_matrix)
    found = tl.maximum(
        _bound(power_ptr, tl.load(trace_ptr), atoms, n_atoms),
        _bound(power_ptr + n_atoms * n_atoms, tl.load(trace_ptr + 1), atoms, n_atoms),
    )
    found = SAFETY * found
    amplification = tl.where(regular & (found < worst), found, worst)

    promised = promise / amplification
    shortest = rounding * overlap
    strict = tl.maximum(promised * tl.minimum(30.0 / amplification, 1.0), 2.0 * shortest)
    length = tl.maximum(tl.minimum(tl.minimum(promised, strict), tol), shortest)
    code_length = tl.maximum(length, shortest * tl.where(uneven > 4.0, uneven, 1.0))
    tl.store(limit_ptr, tl.where(tol > 0.0, code_length * code_length, 0.0))
    tl.store(limit_ptr + 1, tl.where(tol > 0.0, length * length, 0.0))
    tl.store(limit_ptr + 2, shortest)
    tl.store(limit_ptr + 3, tl.load(about_ptr + 2))
    tl.store(limit_ptr + 4, tl.where(regular, 0.0, most_cancellation))
    tl.store(limit_ptr + 5, tl.load(about_ptr + 3))
