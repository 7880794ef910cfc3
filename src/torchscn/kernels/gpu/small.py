"""At most 16 atoms: a thread owns a signal, whose codes and residuals stay in registers through all sweeps."""

import triton
import triton.language as tl

from torchscn.kernels.gpu.columns import columns16, matrix16
from torchscn.kernels.gpu.rows import (
    BAD,
    DONE,
    LARGEST,
    NON_NEGATIVE,
    ON_SUPPORT,
    UNFINISHED,
    inverse_power_of_two,
    is_too_long,
    judge_tile,
    pull_of,
    right_hand_side,
    settle,
)

__all__ = ["sweep_small"]

REFRESH = tl.constexpr(32)  # sweeps after which residuals are computed anew


@triton.jit
def _after_change(r, change, g, i: tl.constexpr):
    """The residuals after the code of atom ``i`` has changed; ``g`` holds what is above the diagonal, row by row."""
    following = ()
    for m in tl.static_range(16):
        if m < i:
            following = following + (r[m] - change * g[m * 15 - m * (m - 1) // 2 + i - m - 1],)
        elif m == i:
            following = following + (r[m] - change,)
        else:
            following = following + (r[m] - change * g[i * 15 - i * (i - 1) // 2 + m - i - 1],)
    return following


@triton.jit
def _scaled(x, inverse_ptr, atoms, finite, inverse_size):
    """The right-hand side for atoms of unit norm, with numbers near 1."""
    x = tl.where(finite[:, None], x, 0.0) * tl.load(inverse_ptr + atoms)[None, :]
    return tl.minimum(tl.maximum(x * inverse_size[:, None], -LARGEST), LARGEST)


@triton.jit
def sweep_small(
    rhs_ptr,
    gram_ptr,
    inverse_ptr,
    own_ptr,
    limit_ptr,
    shift_ptr,
    mask_ptr,
    scale_ptr,
    offset_ptr,
    codes_ptr,
    status_ptr,
    sweeps_ptr,
    n_signals,
    max_iter,
    tol,
    affordable,
    ROWS: tl.constexpr,
    CONSTRAINT: tl.constexpr,
    HAS_SHIFT: tl.constexpr,
    HAS_AFFINE: tl.constexpr,
    BY_BLOCK: tl.constexpr,
    STOPS: tl.constexpr,
    FINISHES: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    rows = tile * ROWS + tl.arange(0, ROWS)
    atoms = tl.arange(0, 16)
    live = rows < n_signals
    here = live[:, None]
    place = rows[:, None] * 16 + atoms[None, :]

    x = right_hand_side(rhs_ptr, shift_ptr, place, here, atoms, HAS_SHIFT)
    poison = tl.sum(x * 0.0, 1) + tl.load(limit_ptr + 3)
    finite = poison == 0.0
    mask = x
    keep = columns16(x, ROWS)
    if CONSTRAINT == ON_SUPPORT:
        mask = tl.load(mask_ptr + place, mask=here, other=0.0)
        keep = columns16(mask, ROWS)
    inverse = tl.load(inverse_ptr + atoms)[None, :]
    pull = pull_of(tl.where(finite[:, None], x, 0.0), mask, 0.0, 0.0, CONSTRAINT)
    lost = tl.max(tl.where(inverse == 0.0, pull, 0.0), 1)
    # Numbers near 1: no square of them overflows or vanishes.
    inverse_size = inverse_power_of_two(tl.max(pull * inverse, 1))
    r = columns16(_scaled(x, inverse_ptr, atoms, finite, inverse_size), ROWS)
    a = columns16(tl.zeros([ROWS, 16], tl.float32), ROWS)
    g = ()
    for i in tl.static_range(16):
        for m in tl.static_range(i + 1, 16):
            g = g + (tl.load(gram_ptr + i * 16 + m),)

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
        if sweep % REFRESH == REFRESH - 1:
            # Residuals that are only ever updated gather rounding errors.
            x = right_hand_side(rhs_ptr, shift_ptr, place, here, atoms, HAS_SHIFT)
            r = columns16(_scaled(x, inverse_ptr, atoms, finite, inverse_size), ROWS)
            for i in tl.static_range(16):
                r = _after_change(r, a[i], g, i)
        step_squared = tl.zeros([ROWS], tl.float32)
        part_squared = tl.zeros([ROWS], tl.float32)
        step_own = tl.zeros([ROWS], tl.float32)
        code_own = tl.zeros([ROWS], tl.float32)
        fresh = ()
        for i in tl.static_range(16):
            new = settle(a[i] + relax * r[i], keep[i], 0.0, 0.0, 0.0, CONSTRAINT)
            change = new - a[i]
            fresh = fresh + (new,)
            own = tl.load(own_ptr + i)
            step_squared += change * change
            part_squared += new * new
            step_own += own * (change * change)
            code_own += own * (new * new)
            r = _after_change(r, change, g, i)
        a = fresh
        sweep += 1
        if STOPS:
            unfinished, step_before, excess_before = judge_tile(
                step_squared, part_squared, step_own, code_own, step_before, excess_before,
                sweep, tol, affordable, limit_ptr, BY_BLOCK, FINISHES,
            )  # fmt: skip

    too_long = is_too_long(step_squared, part_squared, step_own, code_own, limit_ptr)
    status = tl.where(too_long, UNFINISHED, DONE)
    codes = matrix16(a, ROWS)
    x = right_hand_side(rhs_ptr, shift_ptr, place, here, atoms, HAS_SHIFT)
    if CONSTRAINT == NON_NEGATIVE:
        # Where the matrix is singular, codes that cancel each other could be anything.
        most = tl.load(limit_ptr + 4)
        gain = tl.sum(codes * _scaled(x, inverse_ptr, atoms, finite, inverse_size), 1)
        cancels = tl.sum(codes * codes, 1) > tl.where(most > 0.0, most * gain, float("inf"))
        status = tl.where(cancels & (status == DONE), BAD, status)
        status = tl.where(lost > 0.0, BAD, status)
    status = tl.where(finite & (tl.load(limit_ptr + 6) + lost * 0.0 > 0.0), status, BAD)

    codes = codes / inverse_size[:, None] * tl.load(inverse_ptr + atoms)[None, :] + poison[:, None]
    if HAS_AFFINE:
        moved = codes * tl.load(scale_ptr + atoms)[None, :] + tl.load(offset_ptr + atoms)[None, :]
        # Codes that are still to be finished are kept as they are.
        waits = FINISHES & (status == UNFINISHED)
        codes = tl.where(waits[:, None], codes, moved)
    tl.store(codes_ptr + place, codes, mask=here)
    tl.store(status_ptr + rows, status.to(tl.int8), mask=live)
    tl.store(sweeps_ptr + tile, sweep)
