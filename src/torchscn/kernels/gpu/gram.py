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
def _energies(gram_ptr, atoms, n_atoms, ridge):
    """The diagonal of the matrix."""
    energy = _finite(tl.load(gram_ptr + atoms * (n_atoms + 1), mask=atoms < n_atoms, other=0.0))
    return energy.to(tl.float64) * (1.0 + ridge)


@triton.jit
def _norms(energy, least):
    """The norms of atoms, 1 for those without energy, or with so little that digits are lost to underflow."""
    has_energy = energy > least
    return tl.where(has_energy, tl.sqrt(tl.where(has_energy, energy, 1.0)), 1.0), has_energy


@triton.jit
def scale_gram(
    gram_ptr,
    scaled_ptr,
    high_ptr,
    low_ptr,
    pair_ptr,
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

    Writes the matrix, padded with zeros, and, with more digits, its leading bits and the rest; a pair of it for
    factorisation, the second with a ridge of rounding size; the matrix W of ``G error = W step`` for sweeps, in these
    units; what turns it into units of codes; norms and inverse norms; and about the matrix: 0, the largest norm of a
    row; 1, the ratio of the largest norm of an atom to the smallest; 2, NaN if it is not finite; 3, relaxation; 4,
    above 0 if its diagonal shows that it is not positive semi-definite.
    """
    atoms = tl.arange(0, N)
    chunk = tl.arange(0, CHUNK)
    energy = _energies(gram_ptr, atoms, n_atoms, ridge)
    # As Problem.has_vanishing_code has it.
    least = tl.maximum(tl.max(energy, 0) * 1.1754944e-38, 9.86e-32)
    norms, has_energy = _norms(energy, least)
    inverse = tl.where(has_energy, 1.0 / norms, 0.0)
    largest_inverse = tl.max(inverse, 0)
    own = inverse / tl.where(largest_inverse > 0.0, largest_inverse, 1.0)
    tl.store(norm_ptr + atoms, norms.to(tl.float32), mask=atoms < width)
    tl.store(inverse_ptr + atoms, inverse.to(tl.float32), mask=atoms < width)
    tl.store(own_ptr + atoms, (own * own).to(tl.float32), mask=atoms < width)
    unevenness = tl.max(tl.where(has_energy, norms, 0.0), 0) * largest_inverse
    face = 3.8147e-06 * (n_atoms + 8)  # of rounding size: 32 times the precision of a number, for every atom

    overlap = 0.0
    total = 0.0
    poison = 0.0
    contradictions = tl.sum(tl.where(energy < 0.0, 1.0, 0.0), 0)
    for first in range(0, padded_rows, CHUNK):
        rows = first + chunk
        real = (rows < n_atoms)[:, None] & (atoms < n_atoms)[None, :]
        entries = tl.load(gram_ptr + rows[:, None] * n_atoms + atoms[None, :], mask=real, other=0.0)
        poison += tl.sum(tl.sum(entries * 0.0, 1), 0)
        entries = _finite(entries).to(tl.float64)
        row_energy = _energies(gram_ptr, rows, n_atoms, ridge)
        row_norms, row_has_energy = _norms(row_energy, least)
        same = rows[:, None] == atoms[None, :]
        # An atom without energy has no product with others, beyond what underflow explains.
        empty = (row_energy <= 3.95e-31)[:, None] & (same == 0)
        large = entries * entries > 3.95e-31 * energy[None, :]
        contradictions += tl.sum(tl.sum(tl.where(empty & large, 1.0, 0.0), 1), 0)
        exact = entries / norms[None, :] / row_norms[:, None]
        exact = tl.where(has_energy[None, :] & row_has_energy[:, None], exact, 0.0)
        exact = tl.where(same, tl.where(real, 1.0, 0.0), exact)
        scaled = exact.to(tl.float32)
        squares = tl.sum(scaled * scaled, 1)
        overlap = tl.maximum(overlap, tl.max(squares, 0))
        total += tl.sum(squares, 0)
        places = rows[:, None] * width + atoms[None, :]
        inside = (atoms < width)[None, :]
        leading = (scaled.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
        rest = (exact - leading.to(tl.float64)).to(tl.float32)
        tl.store(scaled_ptr + places, scaled, mask=inside & (rows < width)[:, None])
        tl.store(high_ptr + places, leading, mask=inside & (rows < padded_rows)[:, None])
        tl.store(low_ptr + places, rest, mask=inside & (rows < padded_rows)[:, None])
        unpadded = rows[:, None] * n_atoms + atoms[None, :]
        tl.store(pair_ptr + unpadded, scaled, mask=real)
        tl.store(pair_ptr + n_atoms * n_atoms + unpadded, tl.where(same, 1.0 + face, scaled), mask=real)
        # The diagonal follows when the relaxation is known.
        above = tl.where(rows[:, None] < atoms[None, :], scaled, 0.0)
        tl.store(system_ptr + unpadded, above, mask=real & (same == 0))
        tl.store(ratio_ptr + unpadded, scaled * 0.0 + 1.0, mask=real)
        in_codes = (norms[None, :] / row_norms[:, None]).to(tl.float32)
        tl.store(ratio_ptr + n_atoms * n_atoms + unpadded, in_codes, mask=real)
    # As torchscn.kernels.conditioning.relaxation chooses it.
    relax = 1.0 + 0.4 * tl.minimum(tl.maximum(total / n_atoms - 1.0, 0.0), 1.0)
    tl.store(system_ptr + atoms * (n_atoms + 1), 1.0 - 1.0 / relax + tl.zeros([N], tl.float32), mask=atoms < n_atoms)
    tl.store(about_ptr, tl.sqrt(overlap))
    tl.store(about_ptr + 1, unevenness.to(tl.float32))
    tl.store(about_ptr + 2, poison)
    tl.store(about_ptr + 3, relax)
    tl.store(about_ptr + 4, contradictions.to(tl.float32))


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
    for any; 5, relaxation; 6, 1 if the matrix is positive semi-definite, up to rounding, else 0, so that nothing can be
    said about any code. A tolerance of 0 allows no step.
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
    convex = (tl.load(info_ptr + 1) == 0) & (tl.load(about_ptr + 4) == 0.0)
    tl.store(limit_ptr + 6, tl.where(convex, 1.0, 0.0))
