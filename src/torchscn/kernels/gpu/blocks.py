"""Any number of atoms: blocks of 16 are updated by a matrix product over the codes so far, then one after the other.

Codes live in the output, which the caches of the device hold; a tile of 64 x 256 does not fit into registers.
"""

import triton
import triton.language as tl

from torchscn.kernels.gpu.columns import columns16, matrix16
from torchscn.kernels.gpu.rows import (
    BAD,
    BOUNDS,
    DONE,
    LARGEST,
    ON_SUPPORT,
    UNFINISHED,
    back_to_bounds,
    inverse_power_of_two,
    is_too_long,
    judge_tile,
    pull_of,
    right_hand_side,
    settle,
)

__all__ = ["sweep_blocks"]


@triton.jit
def _bounds(lower_ptr, upper_ptr, norm_ptr, place, columns, here, inverse_size):
    """Sixteen columns of the bounds, for atoms of unit norm and numbers near 1."""
    unit = tl.load(norm_ptr + columns)[None, :] * inverse_size[:, None]
    lower = tl.load(lower_ptr + place, mask=here, other=0.0) * unit
    return lower, tl.load(upper_ptr + place, mask=here, other=0.0) * unit


@triton.jit
def _start(init_ptr, norm_ptr, place, columns, here, inverse_size):
    """Sixteen columns of the codes to start from, in the same units."""
    start = tl.load(init_ptr + place, mask=here, other=0.0)
    return start * (tl.load(norm_ptr + columns)[None, :] * inverse_size[:, None])


@triton.jit
def _product(codes_ptr, high_ptr, low_ptr, columns, known, here, width, CHUNK: tl.constexpr, ROWS: tl.constexpr):
    """Sixteen columns of codes times the Gram matrix, of which the first ``known`` codes count."""
    chunk = tl.arange(0, CHUNK)
    product = tl.zeros([ROWS, 16], tl.float32)
    for k in range(0, known, CHUNK):
        seen = here & (k + chunk < known)[None, :]
        codes = tl.load(codes_ptr + k + chunk[None, :], mask=seen, other=0.0)
        # Three products of halves in TF32 are as good as one in float32; a code is split by an AND.
        leading = (codes.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
        entries = (k + chunk)[:, None] * width + columns[None, :]
        gram_high = tl.load(high_ptr + entries)
        product = tl.dot(codes - leading, gram_high, product, input_precision="tf32")
        product = tl.dot(leading, tl.load(low_ptr + entries), product, input_precision="tf32")
        product = tl.dot(leading, gram_high, product, input_precision="tf32")
    return product


@triton.jit
def _resolve(residual, old, keep, lower, upper, threshold, corner_ptr, width, relax,
             ROWS: tl.constexpr, CONSTRAINT: tl.constexpr):  # fmt: skip
    """Sixteen codes updated one after the other; ``corner_ptr`` is where their products with each other begin."""
    r = columns16(residual, ROWS)
    a = columns16(old, ROWS)
    keep_columns = a
    lower_columns = a
    upper_columns = a
    threshold_columns = a
    if CONSTRAINT == ON_SUPPORT:
        keep_columns = columns16(keep, ROWS)
    if CONSTRAINT == BOUNDS:
        lower_columns = columns16(lower, ROWS)
        upper_columns = columns16(upper, ROWS)
        threshold_columns = columns16(threshold, ROWS)
    fresh = ()
    for i in tl.static_range(16):
        new = settle(
            a[i] + relax * r[i], keep_columns[i], lower_columns[i], upper_columns[i], threshold_columns[i], CONSTRAINT
        )
        fresh = fresh + (new,)
        following = r[: i + 1]
        for m in tl.static_range(i + 1, 16):
            following = following + (r[m] - (new - a[i]) * tl.load(corner_ptr + i * width + m),)
        r = following
    return matrix16(fresh, ROWS)


@triton.jit
def sweep_blocks(
    rhs_ptr,
    gram_ptr,
    high_ptr,
    low_ptr,
    inverse_ptr,
    own_ptr,
    limit_ptr,
    shift_ptr,
    init_ptr,
    mask_ptr,
    lower_ptr,
    upper_ptr,
    threshold_ptr,
    norm_ptr,
    scale_ptr,
    offset_ptr,
    codes_ptr,
    status_ptr,
    sweeps_ptr,
    n_signals,
    n_atoms,
    width,
    bound_stride,
    max_iter,
    tol,
    affordable,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    CONSTRAINT: tl.constexpr,
    HAS_SHIFT: tl.constexpr,
    HAS_INIT: tl.constexpr,
    HAS_AFFINE: tl.constexpr,
    BY_BLOCK: tl.constexpr,
    STOPS: tl.constexpr,
    FINISHES: tl.constexpr,
):
    STARTED: tl.constexpr = HAS_INIT or CONSTRAINT == BOUNDS
    tile = tl.program_id(0).to(tl.int64)
    rows = tile * ROWS + tl.arange(0, ROWS)
    live = rows < n_signals
    here = live[:, None]
    sixteen = tl.arange(0, 16)
    base = rows[:, None] * n_atoms
    bound_base = rows[:, None] * bound_stride

    # A first look at the row: is it finite, and how large is what makes codes?
    poison = tl.zeros([ROWS], tl.float32) + tl.load(limit_ptr + 3)
    size = tl.zeros([ROWS], tl.float32)
    lost = tl.zeros([ROWS], tl.float32)
    for first in range(0, n_atoms, 16):
        columns = first + sixteen
        x = right_hand_side(rhs_ptr, shift_ptr, base + columns[None, :], here, columns, HAS_SHIFT)
        poison += tl.sum(x * 0.0, 1)
        keep = x
        lower = x
        upper = x
        inverse = tl.load(inverse_ptr + columns)[None, :]
        if CONSTRAINT == ON_SUPPORT:
            keep = tl.load(mask_ptr + base + columns[None, :], mask=here, other=0.0)
        if CONSTRAINT == BOUNDS:
            lower = tl.load(lower_ptr + bound_base + columns[None, :], mask=here, other=0.0)
            upper = tl.load(upper_ptr + bound_base + columns[None, :], mask=here, other=0.0)
            forced = tl.abs(tl.minimum(tl.maximum(x * 0.0, lower), upper)) * tl.load(norm_ptr + columns)[None, :]
            size = tl.maximum(size, tl.max(forced, 1))
        pull = pull_of(x, keep, lower, upper, CONSTRAINT)
        lost = tl.maximum(lost, tl.max(tl.where(inverse == 0.0, pull, 0.0), 1))
        size = tl.maximum(size, tl.max(pull * inverse, 1))
    finite = poison == 0.0
    inverse_size = inverse_power_of_two(tl.where(finite, size, 0.0))

    if STARTED:
        wild = tl.zeros([ROWS], tl.float32)
        if HAS_INIT:
            for first in range(0, n_atoms, 16):
                columns = first + sixteen
                start = _start(init_ptr, norm_ptr, base + columns[None, :], columns, here, inverse_size)
                wild = tl.maximum(wild, tl.max(tl.where(tl.abs(start) < LARGEST, 0.0, 1.0), 1))
        for first in range(0, n_atoms, 16):
            columns = first + sixteen
            start = tl.zeros([ROWS, 16], tl.float32)
            if HAS_INIT:
                start = _start(init_ptr, norm_ptr, base + columns[None, :], columns, here, inverse_size)
                start = tl.where((wild > 0.0)[:, None], 0.0, start)
            if CONSTRAINT == BOUNDS:
                place = bound_base + columns[None, :]
                lower, upper = _bounds(lower_ptr, upper_ptr, norm_ptr, place, columns, here, inverse_size)
                start = tl.minimum(tl.maximum(start, lower), upper)
            tl.store(codes_ptr + base + columns[None, :], start, mask=here)
        tl.debug_barrier()

    relax = tl.load(limit_ptr + 5)
    sweep = 0
    unfinished = 1
    step_before = -1.0
    excess_before = 0.0
    step_squared = tl.zeros([ROWS], tl.float32)
    part_squared = tl.zeros([ROWS], tl.float32)
    step_own = tl.zeros([ROWS], tl.float32)
    code_own = tl.zeros([ROWS], tl.float32)
    while (sweep < max_iter) & (unfinished > 0):
        step_squared = tl.zeros([ROWS], tl.float32)
        part_squared = tl.zeros([ROWS], tl.float32)
        step_own = tl.zeros([ROWS], tl.float32)
        code_own = tl.zeros([ROWS], tl.float32)
        for first in range(0, n_atoms, 16):
            columns = first + sixteen
            # The first sweep from zero need not sum over the codes it has not come to yet.
            known = n_atoms
            if not STARTED:
                known = tl.where(sweep == 0, first, n_atoms)
            product = _product(codes_ptr + base, high_ptr, low_ptr, columns, known, here, width, CHUNK, ROWS)
            x = right_hand_side(rhs_ptr, shift_ptr, base + columns[None, :], here, columns, HAS_SHIFT)
            x = tl.where(finite[:, None], x, 0.0) * tl.load(inverse_ptr + columns)[None, :] * inverse_size[:, None]
            residual = tl.minimum(tl.maximum(x, -LARGEST), LARGEST) - product
            known_before = here
            if not STARTED:
                known_before = here & (sweep > 0)
            old = tl.load(codes_ptr + base + columns[None, :], mask=known_before, other=0.0)
            keep = old
            lower = old
            upper = old
            threshold = old
            if CONSTRAINT == ON_SUPPORT:
                keep = tl.load(mask_ptr + base + columns[None, :], mask=here, other=0.0)
            if CONSTRAINT == BOUNDS:
                place = bound_base + columns[None, :]
                lower, upper = _bounds(lower_ptr, upper_ptr, norm_ptr, place, columns, here, inverse_size)
                threshold = tl.load(threshold_ptr + place, mask=here, other=0.0) * inverse_size[:, None] * relax
                threshold = threshold * tl.load(inverse_ptr + columns)[None, :]
            corner_ptr = gram_ptr + first * width + first
            new = _resolve(residual, old, keep, lower, upper, threshold, corner_ptr, width, relax, ROWS, CONSTRAINT)
            tl.store(codes_ptr + base + columns[None, :], new, mask=here)
            tl.debug_barrier()
            change = new - old
            own = tl.load(own_ptr + columns)[None, :]
            step_squared += tl.sum(change * change, 1)
            part_squared += tl.sum(new * new, 1)
            step_own += tl.sum(own * (change * change), 1)
            code_own += tl.sum(own * (new * new), 1)
        sweep += 1
        if STOPS:
            unfinished, step_before, excess_before = judge_tile(
                step_squared, part_squared, step_own, code_own, step_before, excess_before,
                sweep, tol, affordable, limit_ptr, BY_BLOCK, FINISHES,
            )  # fmt: skip

    too_long = is_too_long(step_squared, part_squared, step_own, code_own, limit_ptr)
    status = tl.where(too_long, UNFINISHED, DONE)
    most = tl.load(limit_ptr + 4)
    if CONSTRAINT != ON_SUPPORT:
        if most > 0.0:
            # The matrix is singular: codes that cancel each other could be anything.
            gain = tl.zeros([ROWS], tl.float32)
            parts = tl.zeros([ROWS], tl.float32)
            for first in range(0, n_atoms, 16):
                columns = first + sixteen
                product = _product(codes_ptr + base, high_ptr, low_ptr, columns, n_atoms, here, width, CHUNK, ROWS)
                codes = tl.load(codes_ptr + base + columns[None, :], mask=here, other=0.0)
                energy = codes * codes
                gain += tl.sum(codes * product, 1)
                if CONSTRAINT == BOUNDS:
                    # Codes at a bound are exact, and others may be large because they are.
                    place = bound_base + columns[None, :]
                    lower, upper = _bounds(lower_ptr, upper_ptr, norm_ptr, place, columns, here, inverse_size)
                    above = codes > lower
                    below = codes < upper
                    gain += tl.sum(tl.where(above & below, 0.0, energy), 1)
                    energy = tl.where(above & below, energy, 0.0)
                parts += tl.sum(energy, 1)
            status = tl.where((parts > most * gain) & (status == DONE), BAD, status)
        status = tl.where(lost > 0.0, BAD, status)
    status = tl.where(finite & (tl.load(limit_ptr + 6) + lost * 0.0 > 0.0), status, BAD)

    tl.debug_barrier()
    for first in range(0, n_atoms, 16):
        columns = first + sixteen
        found = tl.load(codes_ptr + base + columns[None, :], mask=here, other=0.0)
        codes = found / inverse_size[:, None] * tl.load(inverse_ptr + columns)[None, :]
        if CONSTRAINT == BOUNDS:
            place = bound_base + columns[None, :]
            lower, upper = _bounds(lower_ptr, upper_ptr, norm_ptr, place, columns, here, inverse_size)
            own_lower = tl.load(lower_ptr + place, mask=here, other=0.0)
            own_upper = tl.load(upper_ptr + place, mask=here, other=0.0)
            codes = back_to_bounds(codes, found, lower, upper, own_lower, own_upper)
        codes += poison[:, None]
        if HAS_AFFINE:
            scale = tl.load(scale_ptr + columns)
            offset = tl.load(offset_ptr + columns)
            # Codes that are still to be finished are kept as they are.
            waits = FINISHES & (status == UNFINISHED)
            codes = tl.where(waits[:, None], codes, codes * scale[None, :] + offset[None, :])
        tl.store(codes_ptr + base + columns[None, :], codes, mask=here)
    tl.store(status_ptr + rows, status.to(tl.int8), mask=live)
    tl.store(sweeps_ptr + tile, sweep)
