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
    excess_of,
    inverse_power_of_two,
    is_slow,
    is_too_long,
    settle,
    tile_error,
)

__all__ = ["sweep_small"]


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
def _right_hand_side(rhs_ptr, shift_ptr, inverse_ptr, place, here, atoms, HAS_SHIFT: tl.constexpr):
    x = tl.load(rhs_ptr + place, mask=here, other=0.0)
    if HAS_SHIFT:
        x -= tl.load(shift_ptr + atoms)[None, :]
    return x * tl.load(inverse_ptr + atoms)[None, :]


@triton.jit
def sweep_small(
    rhs_ptr,
    gram_ptr,
    inverse_ptr,
    own_ptr,
    limit_ptr,
    shift_ptr,
    init_ptr,
    mask_ptr,
    scale_ptr,
    offset_ptr,
    codes_ptr,
    status_ptr,
    sweeps_ptr,
    n_signals,
    n_atoms,
    max_iter,
    tol,
    affordable,
    ROWS: tl.constexpr,
    CONSTRAINT: tl.constexpr,
    HAS_SHIFT: tl.constexpr,
    HAS_INIT: tl.constexpr,
    HAS_AFFINE: tl.constexpr,
    BY_BLOCK: tl.constexpr,
    STOPS: tl.constexpr,
    FINISHES: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    rows = tile * ROWS + tl.arange(0, ROWS)
    atoms = tl.arange(0, 16)
    live = rows < n_signals
    here = live[:, None] & (atoms < n_atoms)[None, :]
    place = rows[:, None] * n_atoms + atoms[None, :]

    x = _right_hand_side(rhs_ptr, shift_ptr, inverse_ptr, place, here, atoms, HAS_SHIFT)
    poison = tl.sum(x * 0.0, 1) + tl.load(limit_ptr + 3)
    finite = poison == 0.0
    x = tl.where(finite[:, None], x, 0.0)

    # Numbers near 1: no square of them overflows or vanishes.
    if CONSTRAINT == ON_SUPPORT:
        mask = tl.load(mask_ptr + place, mask=here, other=0.0)
        pull = tl.where(mask > 0, tl.abs(x), 0.0)
        keep = columns16(mask, ROWS)
    else:
        pull = tl.maximum(x, 0.0)
    inverse_size = inverse_power_of_two(tl.max(pull, 1))
    r = columns16(tl.minimum(tl.maximum(x * inverse_size[:, None], -LARGEST), LARGEST), ROWS)
    if CONSTRAINT != ON_SUPPORT:
        keep = r
    g = ()
    for i in tl.static_range(16):
        for m in tl.static_range(i + 1, 16):
            g = g + (tl.load(gram_ptr + i * 16 + m),)
    start = x * 0.0
    if HAS_INIT:
        start = tl.load(init_ptr + place, mask=here, other=0.0) * inverse_size[:, None]
        wild = tl.max(tl.where(tl.abs(start) < LARGEST, 0.0, 1.0), 1) > 0.0
        start = tl.where(wild[:, None], 0.0, start)
    a = columns16(start, ROWS)
    if HAS_INIT:
        for i in tl.static_range(16):
            r = _after_change(r, a[i], g, i)

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
            too_long = is_too_long(step_squared, part_squared, step_own, code_own, limit_ptr)
            more = tl.max(too_long.to(tl.int32), 0)
            if BY_BLOCK:
                too_far, step_before = tile_error(step_squared, part_squared, step_before, tol, limit_ptr)
                more = tl.maximum(more, too_far.to(tl.int32))
            if FINISHES:
                excess = excess_of(step_squared, part_squared, step_own, code_own, limit_ptr)
                excess = tl.max(tl.where(too_long, excess, 0.0), 0)
                slow = is_slow(excess_before, excess, affordable) & (sweep >= 3)
                excess_before = excess
                more = tl.where(slow, 0, more)
            unfinished = more

    too_long = is_too_long(step_squared, part_squared, step_own, code_own, limit_ptr)
    status = tl.where(too_long, UNFINISHED, DONE)
    codes = matrix16(a, ROWS)
    if CONSTRAINT == NON_NEGATIVE:
        most = tl.load(limit_ptr + 4)
        x = _right_hand_side(rhs_ptr, shift_ptr, inverse_ptr, place, here, atoms, HAS_SHIFT)
        gain = tl.sum(codes * (x * inverse_size[:, None]), 1)
        cancels = tl.sum(codes * codes, 1) > tl.where(most > 0.0, most * gain, float("inf"))
        status = tl.where(cancels & (status == DONE), BAD, status)
    status = tl.where(finite, status, BAD)

    inverse = tl.load(inverse_ptr + atoms)
    codes = codes / inverse_size[:, None] * inverse[None, :] + poison[:, None]
    if HAS_AFFINE:
        scale = tl.load(scale_ptr + atoms, mask=atoms < n_atoms, other=0.0)
        moved = codes * scale[None, :] + tl.load(offset_ptr + atoms, mask=atoms < n_atoms, other=0.0)[None, :]
        # Codes that are still to be finished are kept as they are.
        waits = FINISHES & (status == UNFINISHED)
        codes = tl.where(waits[:, None], codes, moved)
    tl.store(codes_ptr + place, codes, mask=here)
    tl.store(status_ptr + rows, status.to(tl.int8), mask=live)
    tl.store(sweeps_ptr + tile, sweep)
