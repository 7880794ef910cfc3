"""What all kernels do with a signal: bring its numbers near 1, settle codes, and judge steps.

Codes and right-hand sides are in units that give every atom unit norm, see prepare.py.
"""

import triton
import triton.language as tl

__all__ = [
    "BAD",
    "BOUNDS",
    "DONE",
    "LARGEST",
    "NON_NEGATIVE",
    "ON_SUPPORT",
    "UNFINISHED",
    "back_to_bounds",
    "inverse_power_of_two",
    "is_too_long",
    "judge_tile",
    "pull_of",
    "right_hand_side",
    "settle",
]

# Constraints.
NON_NEGATIVE = tl.constexpr(0)
ON_SUPPORT = tl.constexpr(1)
BOUNDS = tl.constexpr(2)

# What became of a signal.
UNFINISHED = tl.constexpr(0)
DONE = tl.constexpr(1)
BAD = tl.constexpr(2)  # not finite, or too ill-conditioned for any claim

LARGEST = tl.constexpr(1.1259e15)  # 2^50: scaled numbers beyond are cut off, so that squares of sums stay finite


@triton.jit
def settle(moved, keep, lower, upper, threshold, CONSTRAINT: tl.constexpr):
    """What becomes of codes that a step moved freely."""
    if CONSTRAINT == NON_NEGATIVE:
        return tl.maximum(moved, 0.0)
    elif CONSTRAINT == ON_SUPPORT:
        return tl.where(keep > 0, moved, 0.0)
    else:
        shrunk = tl.maximum(moved - threshold, 0.0) + tl.minimum(moved + threshold, 0.0)
        return tl.minimum(tl.maximum(shrunk, lower), upper)


@triton.jit
def pull_of(x, keep, lower, upper, CONSTRAINT: tl.constexpr):
    """The part of right-hand sides that can make a code, as sizes."""
    if CONSTRAINT == NON_NEGATIVE:
        return tl.maximum(x, 0.0)
    elif CONSTRAINT == ON_SUPPORT:
        return tl.where(keep > 0, tl.abs(x), 0.0)
    else:
        start = tl.minimum(tl.maximum(x * 0.0, lower), upper)
        up = tl.where(upper > start, x, 0.0)
        down = tl.where(lower < start, -x, 0.0)
        return tl.maximum(tl.maximum(up, down), 0.0)


@triton.jit
def inverse_power_of_two(size):
    """One over the power of two at or below every size, or as near as there is one; 1 for zero."""
    power = (size.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    # From 2^-126 to 2^122, so that neither the power nor its inverse is subnormal.
    power = tl.minimum(tl.maximum(power, 1.1754944e-38), 5.316912e36)
    return tl.where(size > 0.0, 1.0 / power, 1.0)


@triton.jit
def back_to_bounds(codes, found, lower, upper, own_lower, own_upper):
    """Codes in their own units: where they were found at a bound they are exactly there, and nowhere beyond it.

    Args:
        codes: in their own units, up to rounding.
        found: as they were found.
        lower, upper: bounds in those units.
        own_lower, own_upper: bounds in the units of codes.
    """
    codes = tl.where(found == upper, own_upper, tl.where(found == lower, own_lower, codes))
    return tl.minimum(tl.maximum(codes, own_lower), own_upper)


@triton.jit
def is_too_long(step_squared, part_squared, step_own, code_own, limit_ptr):
    """Whether steps are longer than the limits allow: in units of what codes contribute, and of codes themselves.

    So are those whose squares are not finite: no limit says anything about them.
    """
    short = (step_squared <= tl.load(limit_ptr + 1) * part_squared) & (step_own <= tl.load(limit_ptr) * code_own)
    finite = (part_squared < float("inf")) & (code_own < float("inf"))
    return (short & finite) == 0


@triton.jit
def right_hand_side(rhs_ptr, shift_ptr, place, here, atoms, HAS_SHIFT: tl.constexpr):
    """Sixteen columns of the right-hand side, the shift subtracted; zero for signals that do not exist."""
    x = tl.load(rhs_ptr + place, mask=here, other=0.0)
    if HAS_SHIFT:
        x = tl.where(here, x - tl.load(shift_ptr + atoms)[None, :], 0.0)
    return x


@triton.jit
def judge_tile(step_squared, part_squared, step_own, code_own, step_before, excess_before,
               sweep, tol, affordable, limit_ptr, BY_BLOCK: tl.constexpr, FINISHES: tl.constexpr):  # fmt: skip
    """Whether a tile needs another sweep, and what the next judgement wants to know about this one.

    It does while a step is too long; by block, also while too much error is left in the tile as a whole; but not where
    exact steps will be taken and sweeps are slow.
    """
    too_long = is_too_long(step_squared, part_squared, step_own, code_own, limit_ptr)
    unfinished = tl.max(too_long.to(tl.int32), 0)
    if BY_BLOCK:
        too_far, step_before = _tile_error(step_squared, part_squared, step_before, tol, limit_ptr)
        unfinished = tl.maximum(unfinished, too_far.to(tl.int32))
    if FINISHES:
        excess = _excess(step_squared, part_squared, step_own, code_own, limit_ptr)
        excess = tl.max(tl.where(too_long, excess, 0.0), 0)
        slow = _is_slow(excess_before, excess, affordable) & (sweep >= 3)
        excess_before = excess
        unfinished = tl.where(slow, 0, unfinished)
    return unfinished, step_before, excess_before


@triton.jit
def _excess(step_squared, part_squared, step_own, code_own, limit_ptr):
    """How many times longer than allowed steps are."""
    ratio = step_squared / tl.maximum(tl.load(limit_ptr + 1) * part_squared, 1e-37)
    own_ratio = step_own / tl.maximum(tl.load(limit_ptr) * code_own, 1e-37)
    return tl.sqrt(tl.maximum(ratio, own_ratio))


@triton.jit
def _tile_error(step_squared, part_squared, step_before, tol, limit_ptr):
    """Whether too much error is left in a tile as a whole, relative to its codes, and the length of its step.

    Steps that shrink by a factor r from sweep to sweep will add up to the last one times r / (1 - r); the first sweep
    (step_before < 0) knows no factor and takes 1/2. A step that cannot be told from none leaves nothing.
    """
    step = tl.sqrt(tl.sum(step_squared, 0))
    size = tl.sqrt(tl.sum(part_squared, 0))
    left = tl.where(step > tl.load(limit_ptr + 2) * size, step, 0.0)
    known = (step_before >= 0.0) & (step > 0.0)
    gap = step_before - step
    factor = tl.where(gap > 0.0, step / tl.where(gap > 0.0, gap, 1.0), 1e6)
    left = tl.where(known, left * factor, left)
    return left > tol * size, step


@triton.jit
def _is_slow(before, now, affordable):
    """Whether sweeps that shrink their steps like the last one would take more than what is affordable."""
    # A row whose codes all became zero has an infinite excess; the next sweep will show whether they stay there.
    judged = (now > 1.0) & (now < 1e30)
    shrinks = before / tl.where(judged, now, 1.0)
    needed = tl.log2(tl.where(judged, now, 1.0)) / tl.where(shrinks > 1.0, tl.log2(shrinks), 1e-30)
    return judged & (needed > affordable)
