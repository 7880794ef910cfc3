"""A tile of sixteen atoms as columns: one tensor of a value per signal for every atom, and back.

Triton has no indexing into tensors in registers, so a tile is split in halves until single columns are left.
"""

import triton
import triton.language as tl

__all__ = ["columns16", "matrix16"]


@triton.jit
def _halves(x, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    return tl.split(tl.reshape(x, (ROWS, WIDTH // 2, 2)))


@triton.jit
def _columns4(x, ROWS: tl.constexpr):
    even, odd = _halves(x, ROWS, 4)
    c0, c2 = tl.split(even)
    c1, c3 = tl.split(odd)
    return c0, c1, c2, c3


@triton.jit
def columns16(x, ROWS: tl.constexpr):
    """The columns of a tile ``(ROWS, 16)``."""
    even, odd = _halves(x, ROWS, 16)
    even_even, even_odd = _halves(even, ROWS, 8)
    odd_even, odd_odd = _halves(odd, ROWS, 8)
    c0, c4, c8, c12 = _columns4(even_even, ROWS)
    c2, c6, c10, c14 = _columns4(even_odd, ROWS)
    c1, c5, c9, c13 = _columns4(odd_even, ROWS)
    c3, c7, c11, c15 = _columns4(odd_odd, ROWS)
    return (c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15)


@triton.jit
def _joined4(a, b, c, d, ROWS: tl.constexpr):
    """Four columns that are 4 apart, as a tile ``(ROWS, 4)``."""
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (ROWS, 4))


@triton.jit
def matrix16(c, ROWS: tl.constexpr):
    """The tile with these sixteen columns."""
    even_even = _joined4(c[0], c[4], c[8], c[12], ROWS)
    even_odd = _joined4(c[2], c[6], c[10], c[14], ROWS)
    odd_even = _joined4(c[1], c[5], c[9], c[13], ROWS)
    odd_odd = _joined4(c[3], c[7], c[11], c[15], ROWS)
    even = tl.reshape(tl.join(even_even, even_odd), (ROWS, 8))
    odd = tl.reshape(tl.join(odd_even, odd_odd), (ROWS, 8))
    return tl.reshape(tl.join(even, odd), (ROWS, 16))
