"""Gauss-Seidel sweeps in plain torch: the compiled kernel's stand-in, on any device."""

import torch
from torch import Tensor

__all__ = ["torch_sweeps"]

_GROUP = 16  # atoms whose residuals are computed by one matrix product


def torch_sweeps(
    rhs: Tensor,
    gram: Tensor,
    *,
    shift: Tensor | None,
    init: Tensor | None,
    support: Tensor | None,
    tol: float,
    max_iter: int,
    relax: float,
    ridge: float,
    as_block: bool,
) -> tuple[Tensor, Tensor, int, float]:
    """Sweep over the atoms until no code of any signal changes by more than ``tol`` times its largest code.

    Args:
        rhs: ``(n_signals, n_atoms)``.
        gram: ``(n_atoms, n_atoms)``, symmetric.
        shift: ``(n_atoms,)`` to subtract from every row of ``rhs``.
        init: codes to start from; None is zero.
        support: where given, codes are kept where it is positive and zero elsewhere, instead of clamped at zero.
        tol: relative accuracy; 0 runs exactly ``max_iter`` sweeps.
        max_iter: cap on the sweeps.
        relax: over-relaxation, between 0 and 2.
        ridge: added to the diagonal, relative to it.
        as_block: allows a rule for blocks of signals that this function has no use for.

    Returns:
        codes, converged ``(n_signals,)``, the most sweeps of any signal, the mean over signals.
    """
    # Atoms first, so that one atom's codes over all signals are contiguous.
    rows = (rhs if shift is None else rhs - shift).detach().mT.contiguous()
    gram = gram.detach() + ridge * torch.diag(gram.detach().diagonal())
    codes = torch.zeros_like(rows) if init is None else init.detach().mT.clone()
    keep = None if support is None else support.detach().mT > 0
    diagonal = gram.diagonal()
    steps = torch.where(diagonal > 0, relax / diagonal, torch.zeros_like(diagonal))

    # On other devices reading the stopping test waits for the device, so it is read rarely.
    check_every = 1 if rows.device.type == "cpu" else 8
    done = torch.zeros(rows.shape[1], dtype=torch.bool, device=rows.device)
    n_iter = 0
    while n_iter < max_iter:
        previous = codes.clone()
        _sweep(codes, rows, gram, steps, keep)
        n_iter += 1
        if n_iter % check_every == 0 or n_iter == max_iter:
            change = (codes - previous).abs().amax(0)
            done = ~(change > tol * codes.abs().amax(0))
            if done.all():
                break
    finite = torch.isfinite(rows).all(0) & torch.isfinite(codes).all(0) & torch.isfinite(gram).all()
    codes = torch.where(finite, codes, torch.nan)
    return codes.mT.contiguous(), done & finite, n_iter, float(n_iter)


def _sweep(codes: Tensor, rows: Tensor, gram: Tensor, steps: Tensor, keep: Tensor | None) -> None:
    """Update every atom in turn, in place."""
    for first in range(0, len(codes), _GROUP):
        group = slice(first, min(first + _GROUP, len(codes)))
        residual = torch.addmm(rows[group], gram[group], codes, alpha=-1)
        for i, j in enumerate(range(group.start, group.stop)):
            moved = torch.add(codes[j], residual[i] * steps[j])
            moved = moved.clamp_(min=0) if keep is None else moved * keep[j]
            change = moved - codes[j]
            codes[j] = moved
            residual[i + 1 :].addr_(gram[j + 1 : group.stop, j], change, alpha=-1)
