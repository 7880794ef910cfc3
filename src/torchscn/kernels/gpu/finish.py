"""Exact steps for the few signals on which sweeps would crawl, each solved by a program of its own.

A round solves for the codes that can move (a Cholesky factorisation of their part of the Gram matrix), goes as far
towards them as the constraint allows, and lets two sweeps change which codes can move, as on the CPU (cpu/face.h). One
program goes through several signals, so that nobody has to know beforehand how many are left.
"""

import triton
import triton.language as tl

from torchscn.kernels.gpu.rows import (
    BAD,
    BOUNDS,
    DONE,
    LARGEST,
    NON_NEGATIVE,
    ON_SUPPORT,
    UNFINISHED,
    back_to_bounds,
    inverse_power_of_two,
    is_too_long,
    pull_of,
    settle,
)

__all__ = ["finish_rows"]

# As in cpu/block.cpp.
HASTY_ROUNDS = tl.constexpr(4)
HASTY_STEPS = tl.constexpr(2)


@triton.jit
def _entry(vector, atoms, i):
    """One entry of a vector that is spread over threads."""
    return tl.sum(tl.where(atoms == i, vector, 0.0), 0)


@triton.jit
def _product(high_ptr, low_ptr, vector, atoms, width, CHUNK: tl.constexpr, N: tl.constexpr):
    """The Gram matrix, with more digits than one number holds, times a vector."""
    product = tl.zeros([N], tl.float32)
    chunk = tl.arange(0, CHUNK)
    for first in range(0, width, CHUNK):
        places = (first + chunk)[:, None] * width + atoms[None, :]
        inside = (first + chunk < width)[:, None] & (atoms < width)[None, :]
        chosen = tl.sum(tl.where((first + chunk)[:, None] == atoms[None, :], vector[None, :], 0.0), 1)[:, None]
        product += tl.sum(tl.load(low_ptr + places, mask=inside, other=0.0) * chosen, 0)
        product += tl.sum(tl.load(high_ptr + places, mask=inside, other=0.0) * chosen, 0)
    return product


@triton.jit
def _factorize(gram_ptr, factor_ptr, right, free, atoms, width, ridge, least, CHUNK: tl.constexpr, N: tl.constexpr):
    """The Cholesky factor of the free codes' part of the matrix, and ``L^-1 right`` by atom.

    Columns of the factor are kept one after the other, in the order of the free atoms; returns how many there are. An
    atom that depends on those before it, up to rounding, has no column (NaN marks it) and stays where it is.
    """
    chunk = tl.arange(0, CHUNK)
    left = free
    forward = tl.zeros([N], tl.float32)
    rest = right
    used = 0
    for j in range(0, width):
        if _entry(left, atoms, j) > 0:
            column = tl.load(gram_ptr + j * width + atoms, mask=atoms < width, other=0.0)
            column = tl.where(left > 0, column, 0.0) + tl.where(atoms == j, ridge, 0.0)
            for first in range(0, used, CHUNK):
                known = first + chunk < used
                places = factor_ptr + (first + chunk) * N
                before = tl.load(places[:, None] + atoms[None, :], mask=known[:, None], other=0.0)
                at_j = tl.load(places + j, mask=known, other=0.0)
                column -= tl.where(left > 0, tl.sum(before * at_j[:, None], 0), 0.0)
            pivot = _entry(column, atoms, j)
            if pivot > least:
                column = column / tl.sqrt(pivot)
                value = _entry(rest, atoms, j) / tl.sqrt(pivot)
                forward = tl.where(atoms == j, value, forward)
                rest -= value * column
                tl.store(factor_ptr + used * N + atoms, column)
                tl.debug_barrier()
                used += 1
            else:
                forward = tl.where(atoms == j, float("nan"), forward)
            left = tl.where(atoms == j, 0.0, left)
    return used, forward


@triton.jit
def _substitute_back(factor_ptr, used, forward, free, atoms, width, N: tl.constexpr):
    """The step that the factor and ``L^-1 right`` stand for."""
    step = tl.zeros([N], tl.float32)
    for back in range(0, width):
        j = width - 1 - back
        value = _entry(forward, atoms, j)
        if (_entry(free, atoms, j) > 0) & (value == value):
            used -= 1
            column = tl.load(factor_ptr + used * N + atoms)
            value = (value - tl.sum(column * step, 0)) / _entry(column, atoms, j)
            step = tl.where(atoms == j, value, step)
    return step


@triton.jit
def _objective_change(factor_ptr, used, right, move, atoms, CHUNK: tl.constexpr, N: tl.constexpr):
    """Change of the objective for a move of the free codes; by the factor, since the matrix loses it to rounding."""
    chunk = tl.arange(0, CHUNK)
    quadratic = 0.0
    for first in range(0, used, CHUNK):
        known = first + chunk < used
        places = factor_ptr + (first + chunk) * N
        columns = tl.load(places[:, None] + atoms[None, :], mask=known[:, None], other=0.0)
        along = tl.sum(columns * move[None, :], 1)
        quadratic += tl.sum(along * along, 0)
    return quadratic / 2 - tl.sum(right * move, 0)


@triton.jit
def _walk(codes, step, lower, upper, free):
    """The codes after as much of a step as leaves none outside its bounds, and that part.

    Those that stop at a bound are exactly there.
    """
    room = tl.where(step < 0.0, lower - codes, upper - codes)
    share = tl.where((free > 0) & (step != 0.0), room / tl.where(step != 0.0, step, 1.0), 2.0)
    length = tl.minimum(tl.min(share, 0), 1.0)
    stops = share <= tl.where(length < 1.0, length, -1.0)
    moved = tl.minimum(tl.maximum(codes + length * step, lower), upper)
    return tl.where(free > 0, tl.where(stops, tl.where(step < 0.0, lower, upper), moved), codes), length


@triton.jit
def _exact_step(gram_ptr, factor_ptr, codes, residual, keep, lower, upper, threshold, exists, ridge, least, atoms,
                width, CHUNK: tl.constexpr, N: tl.constexpr, CONSTRAINT: tl.constexpr):  # fmt: skip
    """The codes moved towards the optimum over those that can move, and whether a bound stopped them."""
    sign = tl.where(codes > 0.0, 1.0, tl.where(codes < 0.0, -1.0, 0.0))
    if CONSTRAINT == NON_NEGATIVE:
        free = codes > 0.0
    elif CONSTRAINT == ON_SUPPORT:
        free = keep > 0.0
    else:
        # A code stays on its side of a zero that has a penalty.
        free = (codes > lower) & (codes < upper) & ((sign != 0.0) | (threshold == 0.0))
        lower = tl.where((threshold > 0.0) & (sign > 0.0), tl.maximum(lower, 0.0), lower)
        upper = tl.where((threshold > 0.0) & (sign < 0.0), tl.minimum(upper, 0.0), upper)
    free = (free & (exists > 0.0)).to(tl.float32)
    right = tl.where(free > 0.0, residual - sign * threshold, 0.0)
    used, forward = _factorize(gram_ptr, factor_ptr, right, free, atoms, width, ridge, least, CHUNK, N)
    step = _substitute_back(factor_ptr, used, forward, free, atoms, width, N)
    moved, length = _walk(codes, step, lower, upper, free)
    if CONSTRAINT == NON_NEGATIVE:
        # All of the step, or a part, with what would become negative cut off, may lower the objective more than
        # stopping at the first zero, which always lowers it.
        lowest = (length * length / 2 - length) * tl.sum(right * step, 0)
        part = 1.0
        for _ in tl.static_range(3):
            cut = tl.where(free > 0.0, tl.maximum(codes + part * step, 0.0), codes)
            change = _objective_change(factor_ptr, used, right, cut - codes, atoms, CHUNK, N)
            better = (change < lowest) & (length < part)
            moved = tl.where(better, cut, moved)
            lowest = tl.where(better, change, lowest)
            part = part / 2
        moved = tl.where(moved > 9.6e-7 * codes, moved, 0.0)  # a code that stopped at zero is there up to rounding only
    tl.debug_barrier()  # the factor may be written over from here on
    return moved, length < 1.0


@triton.jit
def _sweep(gram_ptr, own_ptr, codes, residual, keep, lower, upper, threshold, relax, atoms, width,
           CONSTRAINT: tl.constexpr):  # fmt: skip
    """Every code updated in turn: codes, residuals and four sums, as in the other kernels."""
    before = codes
    for j in range(0, width):
        old = _entry(codes, atoms, j)
        keep_one = 0.0
        lower_one = 0.0
        upper_one = 0.0
        threshold_one = 0.0
        if CONSTRAINT == ON_SUPPORT:
            keep_one = _entry(keep, atoms, j)
        if CONSTRAINT == BOUNDS:
            lower_one = _entry(lower, atoms, j)
            upper_one = _entry(upper, atoms, j)
            threshold_one = relax * _entry(threshold, atoms, j)
        moved = old + relax * _entry(residual, atoms, j)
        new = settle(moved, keep_one, lower_one, upper_one, threshold_one, CONSTRAINT)
        residual -= (new - old) * tl.load(gram_ptr + j * width + atoms, mask=atoms < width, other=0.0)
        codes = tl.where(atoms == j, new, codes)
    own = tl.load(own_ptr + atoms, mask=atoms < width, other=0.0)
    change = codes - before
    sums = tl.sum(change * change, 0), tl.sum(codes * codes, 0)
    own_sums = tl.sum(own * (change * change), 0), tl.sum(own * (codes * codes), 0)
    return codes, residual, sums[0], sums[1], own_sums[0], own_sums[1]


@triton.jit
def finish_rows(
    rhs_ptr,
    gram_ptr,
    high_ptr,
    low_ptr,
    inverse_ptr,
    own_ptr,
    limit_ptr,
    shift_ptr,
    mask_ptr,
    lower_ptr,
    upper_ptr,
    threshold_ptr,
    norm_ptr,
    scale_ptr,
    offset_ptr,
    codes_ptr,
    status_ptr,
    rounds_ptr,
    factor_ptr,
    n_signals,
    n_atoms,
    width,
    bound_stride,
    max_rounds,
    ridge,
    least_pivot,
    CHUNK: tl.constexpr,
    N: tl.constexpr,
    CONSTRAINT: tl.constexpr,
    HAS_SHIFT: tl.constexpr,
    HAS_AFFINE: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    atoms = tl.arange(0, N)
    real = atoms < n_atoms
    own_factor_ptr = factor_ptr + program * N * N
    inverse = tl.load(inverse_ptr + atoms, mask=real, other=0.0)
    norms = tl.load(norm_ptr + atoms, mask=real, other=1.0)
    relax = tl.load(limit_ptr + 5)
    most = tl.load(limit_ptr + 4)
    most_rounds = 0
    all_rounds = 0
    for row in range(program, n_signals, tl.num_programs(0)):
        if tl.load(status_ptr + row) == UNFINISHED:
            x = tl.load(rhs_ptr + row * n_atoms + atoms, mask=real, other=0.0)
            if HAS_SHIFT:
                x -= tl.load(shift_ptr + atoms, mask=real, other=0.0)
            keep = tl.zeros([N], tl.float32)
            own_lower = tl.zeros([N], tl.float32)
            own_upper = tl.zeros([N], tl.float32) + float("inf")
            threshold = tl.zeros([N], tl.float32)
            if CONSTRAINT == ON_SUPPORT:
                keep = tl.load(mask_ptr + row * n_atoms + atoms, mask=real, other=0.0)
                own_lower = own_lower - float("inf")
            if CONSTRAINT == BOUNDS:
                bounds = row * bound_stride + atoms
                own_lower = tl.load(lower_ptr + bounds, mask=real, other=0.0)
                own_upper = tl.load(upper_ptr + bounds, mask=real, other=0.0)
                threshold = tl.load(threshold_ptr + bounds, mask=real, other=0.0) * inverse
            codes = tl.load(codes_ptr + row * n_atoms + atoms, mask=real, other=0.0) * norms
            # Numbers near 1: no square of them overflows or vanishes.
            pull = pull_of(x, keep, own_lower, own_upper, CONSTRAINT) * inverse
            inverse_size = inverse_power_of_two(tl.max(tl.maximum(tl.abs(codes), pull), 0))
            x = tl.minimum(tl.maximum(x * inverse * inverse_size, -LARGEST), LARGEST)
            lower = own_lower * norms * inverse_size
            upper = own_upper * norms * inverse_size
            threshold = threshold * inverse_size
            codes = codes * inverse_size
            if CONSTRAINT == BOUNDS:
                codes = tl.minimum(tl.maximum(codes, lower), upper)

            rounds = 0
            unfinished = 1
            part_squared = 0.0
            while (rounds < max_rounds) & (unfinished > 0):
                before = codes
                # Steps that end at the optimum of a support make sure that this support never comes back; the first
                # rounds get by without, which is faster.
                steps_left = tl.where(rounds < HASTY_ROUNDS, HASTY_STEPS, width)
                residual = x - _product(high_ptr, low_ptr, codes, atoms, width, CHUNK, N)
                while steps_left > 0:
                    codes, stopped = _exact_step(
                        gram_ptr, own_factor_ptr, codes, residual, keep, lower, upper, threshold, inverse,
                        ridge, least_pivot, atoms, width, CHUNK, N, CONSTRAINT,
                    )  # fmt: skip
                    residual = x - _product(high_ptr, low_ptr, codes, atoms, width, CHUNK, N)
                    steps_left = tl.where(stopped, steps_left - 1, 0)
                codes, residual, step_squared, part_squared, step_own, code_own = _sweep(
                    gram_ptr, own_ptr, codes, residual, keep, lower, upper, threshold, relax, atoms, width, CONSTRAINT
                )
                if CONSTRAINT != ON_SUPPORT:
                    codes, residual, step_squared, part_squared, step_own, code_own = _sweep(
                        gram_ptr, own_ptr, codes, residual, keep, lower, upper, threshold, relax, atoms, width,
                        CONSTRAINT,
                    )  # fmt: skip
                rounds += 1
                too_long = is_too_long(step_squared, part_squared, step_own, code_own, limit_ptr)
                moved = tl.sum(tl.where(codes != before, 1, 0), 0) > 0
                unfinished = tl.where(too_long & moved & (part_squared < float("inf")), 1, 0)
                tl.store(status_ptr + row, tl.where(too_long, UNFINISHED, DONE).to(tl.int8))
            most_rounds = tl.maximum(most_rounds, rounds)
            all_rounds += rounds

            if CONSTRAINT != ON_SUPPORT:
                fixed = tl.where((codes > lower) & (codes < upper), 0.0, 1.0)
                gain = tl.sum(codes * _product(high_ptr, low_ptr, codes, atoms, width, CHUNK, N), 0)
                if CONSTRAINT == BOUNDS:
                    gain += tl.sum(fixed * codes * codes, 0)
                    part_squared = tl.sum((1.0 - fixed) * codes * codes, 0)
                if (most > 0.0) & (part_squared > most * gain):
                    tl.store(status_ptr + row, tl.full((), BAD, tl.int8))
            found = codes
            codes = codes / inverse_size * inverse
            if CONSTRAINT == BOUNDS:
                codes = back_to_bounds(codes, found, lower, upper, own_lower, own_upper)
            if HAS_AFFINE:
                scale = tl.load(scale_ptr + atoms, mask=real, other=0.0)
                codes = codes * scale + tl.load(offset_ptr + atoms, mask=real, other=0.0)
            tl.store(codes_ptr + row * n_atoms + atoms, codes, mask=real)
    tl.store(rounds_ptr + program * 2, most_rounds)
    tl.store(rounds_ptr + program * 2 + 1, all_rounds)
