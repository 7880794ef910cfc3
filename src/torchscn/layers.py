"""Sparse coding as modules: shells over the functions, with torch's constructor conventions."""

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torchscn import checks, functional
from torchscn.solvers import Solution

__all__ = ["SparseCoding", "SparseCoding1d", "SparseCoding2d", "attach_projection", "project_lam1"]


class _SparseCodingBase(nn.Module):
    """Dictionary, penalties and solver options, common to every layer."""

    dictionary: nn.Parameter
    lam1: nn.Parameter

    def __init__(
        self,
        atom_shape: tuple[int, ...],
        n_atoms: int,
        *,
        lam1: float,
        lam2: float,
        per_atom: bool,
        learn_lam1: bool,
        unit_norm: bool,
        solver: str,
        tol: float,
        max_iter: int | None,
        grad: str,
        device: Any,
        dtype: Any,
    ):
        super().__init__()
        checks.check_number("n_atoms", n_atoms, at_least=1, whole=True)
        checks.check_number("lam1", lam1, at_least=0)
        checks.check_number("lam2", lam2, at_least=0)
        checks.check_options(solver, tol, max_iter, grad)
        self.n_atoms = n_atoms
        self.initial_lam1 = float(lam1)
        self.lam2 = float(lam2)
        self.unit_norm = unit_norm
        self.solver, self.tol, self.max_iter, self.grad = solver, tol, max_iter, grad
        dictionary = torch.empty((n_atoms, *atom_shape), device=device, dtype=dtype)
        checks.check_tensor("the dictionary", dictionary)
        self.dictionary = nn.Parameter(dictionary)
        lam1_shape = (n_atoms,) if per_atom else ()
        self.lam1 = nn.Parameter(torch.empty(lam1_shape, device=device, dtype=dtype), requires_grad=learn_lam1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Gaussian atoms of about unit norm; ``lam1`` at its initial value."""
        nn.init.normal_(self.dictionary, std=1 / math.sqrt(self.dictionary[0].numel()))
        nn.init.constant_(self.lam1, self.initial_lam1)

    def atoms(self) -> Tensor:
        """The dictionary in use: the parameter itself, or scaled to unit norm with ``unit_norm``."""
        if not self.unit_norm:
            return self.dictionary
        return F.normalize(self.dictionary.flatten(1)).view_as(self.dictionary)

    def _problem(self) -> tuple[Tensor, Tensor, float]:
        """Atoms and penalties; a negative learned ``lam1`` counts as 0, with its gradient passing at exactly 0."""
        return self.atoms(), self.lam1.clamp(min=0), self.lam2

    def _solve_options(self) -> dict[str, Any]:
        return {"solver": self.solver, "tol": self.tol, "max_iter": self.max_iter}

    def _geometry_repr(self) -> str:
        return ""

    def extra_repr(self) -> str:
        tied = "" if self.lam1.dim() == 0 else ", per_atom=True"
        unit = ", unit_norm=True" if self.unit_norm else ""
        cap = "" if self.max_iter is None else f", max_iter={self.max_iter}"
        rule = "" if self.grad == "implicit" else f", grad={self.grad!r}"
        return (
            f"{self.dictionary.shape[1]}, {self.n_atoms}{self._geometry_repr()}, lam2={self.lam2:g}{tied}{unit}, "
            f"solver={self.solver!r}, tol={self.tol:g}{cap}{rule}"
        )


class SparseCoding(_SparseCodingBase):
    r"""Sparse codes of feature vectors, in the place of ``Linear`` followed by ``ReLU``.

    Args:
        in_features: length of a signal.
        n_atoms: number of atoms, the length of a code.
        lam1: initial l1 penalty, at least 0; learned unless ``learn_lam1=False``.
        lam2: l2 penalty, at least 0, fixed. Above 0 it makes the code unique.
        per_atom: learn one ``lam1`` per atom instead of one for the layer.
        learn_lam1: whether ``lam1`` is trained.
        unit_norm: use the atoms scaled to unit norm, whatever the length of the parameter.
        solver: one of :func:`torchscn.list_solvers`.
        tol: relative accuracy of the codes, see :func:`torchscn.sparse_code`.
        max_iter: cap on the solver's iterations; None is its own.
        grad: ``"implicit"``, or ``"unrolled"`` with ``solver="fista"``.

    Attributes:
        dictionary: the atoms, ``(n_atoms, in_features)``.
        lam1: the l1 penalty, a scalar or ``(n_atoms,)``. Keep it non-negative while training with
            :func:`attach_projection`; a negative entry counts as 0.

    Shape:
        - Input: ``(..., in_features)``
        - Output: ``(..., n_atoms)``

    Example:
        >>> layer = SparseCoding(64, 100, lam1=0.1)
        >>> layer(torch.randn(32, 64)).shape
        torch.Size([32, 100])
    """

    def __init__(
        self,
        in_features: int,
        n_atoms: int,
        *,
        lam1: float = 0.0,
        lam2: float = 1e-3,
        per_atom: bool = False,
        learn_lam1: bool = True,
        unit_norm: bool = False,
        solver: str = "auto",
        tol: float = 1e-2,
        max_iter: int | None = None,
        grad: str = "implicit",
        device: Any = None,
        dtype: Any = None,
    ):
        checks.check_number("in_features", in_features, at_least=1, whole=True)
        super().__init__(
            (in_features,),
            n_atoms,
            lam1=lam1,
            lam2=lam2,
            per_atom=per_atom,
            learn_lam1=learn_lam1,
            unit_norm=unit_norm,
            solver=solver,
            tol=tol,
            max_iter=max_iter,
            grad=grad,
            device=device,
            dtype=dtype,
        )
        self.in_features = in_features

    def forward(self, x: Tensor) -> Tensor:
        return functional.sparse_code(x, *self._problem(), **self._solve_options(), grad=self.grad)

    def solve(self, x: Tensor) -> Solution:
        """Codes of ``x`` with their certificate, without a gradient."""
        return functional.solve(x, *self._problem(), **self._solve_options())

    def reconstruct(self, codes: Tensor) -> Tensor:
        """Signals ``(..., in_features)`` that the codes stand for."""
        return codes @ self.atoms()


class _SparseCodingNd(_SparseCodingBase):
    """Sparse codes of the patch at every position."""

    n_dims: int

    def __init__(
        self,
        in_channels: int,
        n_atoms: int,
        kernel_size: int | tuple[int, ...] = 3,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | None = None,
        dilation: int | tuple[int, ...] = 1,
        *,
        lam1: float = 0.0,
        lam2: float = 1e-3,
        per_atom: bool = False,
        learn_lam1: bool = True,
        unit_norm: bool = False,
        solver: str = "auto",
        tol: float = 1e-2,
        max_iter: int | None = None,
        grad: str = "implicit",
        device: Any = None,
        dtype: Any = None,
    ):
        checks.check_number("in_channels", in_channels, at_least=1, whole=True)
        kernel = self._per_dim("kernel_size", kernel_size, at_least=1)
        super().__init__(
            (in_channels, *kernel),
            n_atoms,
            lam1=lam1,
            lam2=lam2,
            per_atom=per_atom,
            learn_lam1=learn_lam1,
            unit_norm=unit_norm,
            solver=solver,
            tol=tol,
            max_iter=max_iter,
            grad=grad,
            device=device,
            dtype=dtype,
        )
        self.in_channels = in_channels
        self.kernel_size = kernel
        self.stride = self._per_dim("stride", stride, at_least=1)
        self.dilation = self._per_dim("dilation", dilation, at_least=1)
        if padding is None:
            padding = self._same_padding()
        self.padding = self._per_dim("padding", padding, at_least=0)

    def _per_dim(self, what: str, value: Any, at_least: int) -> tuple[int, ...]:
        """One number per dimension, from one for all or one for each."""
        values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * self.n_dims
        if len(values) != self.n_dims:
            raise ValueError(f"{what} must be one number or {self.n_dims}; got {value!r}.")
        for number in values:
            checks.check_number(what, number, at_least=at_least, whole=True)
        return values

    def _same_padding(self) -> tuple[int, ...]:
        """The padding that keeps the size at stride 1."""
        if any(k % 2 == 0 for k in self.kernel_size):
            raise ValueError(
                f"kernel_size {self.kernel_size} is even, so no padding keeps the size; give padding explicitly."
            )
        return tuple(d * (k - 1) // 2 for k, d in zip(self.kernel_size, self.dilation, strict=True))

    def _geometry(self) -> dict[str, Any]:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}

    def _check_input(self, x: Any) -> None:
        if not isinstance(x, Tensor):
            return  # the functions say what they expect
        if x.dim() not in (self.n_dims + 1, self.n_dims + 2) or x.shape[-1 - self.n_dims] != self.in_channels:
            sizes = ", ".join(("height", "width") if self.n_dims == 2 else ("length",))
            raise ValueError(
                f"x must have shape (batch, {self.in_channels}, {sizes}), batch optional; got {tuple(x.shape)}."
            )
        spans = zip(x.shape[-self.n_dims :], self.kernel_size, self.padding, self.dilation, strict=True)
        if any(size + 2 * p < d * (k - 1) + 1 for size, k, p, d in spans):
            raise ValueError(
                f"x of shape {tuple(x.shape)} is smaller than one patch: kernel_size {self.kernel_size}, "
                f"dilation {self.dilation}, padding {self.padding}."
            )

    def _geometry_repr(self) -> str:
        return f", kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}" + (
            "" if set(self.dilation) == {1} else f", dilation={self.dilation}"
        )

    def forward(self, x: Tensor) -> Tensor:
        self._check_input(x)
        return functional.sparse_code_patches(
            x, *self._problem(), self._geometry(), **self._solve_options(), grad=self.grad
        )

    def infer(self, x: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
        """``codes * scale + offset``, one value per atom each, without a gradient: a layer and its norm in one pass."""
        self._check_input(x)
        affine = (scale.contiguous(), offset.contiguous())
        return functional.infer_patches(x, *self._problem(), self._geometry(), affine, **self._solve_options())

    def solve(self, x: Tensor) -> Solution:
        """Codes of every patch of ``x`` with their certificate, without a gradient.

        ``codes`` has the shape of the layer's output; ``residual`` and ``converged`` have it without the atoms.
        """
        self._check_input(x)
        return functional.solve_patches(x, *self._problem(), self._geometry(), **self._solve_options())

    def reconstruct(self, codes: Tensor) -> Tensor:
        """The patches that the codes stand for, one per position, flattened over channels and kernel.

        Shape ``(batch, in_channels * kernel elements, *positions)``: flattened over positions, the layout of
        :func:`torch.nn.functional.unfold`.
        """
        patches = self.atoms().flatten(1)
        return torch.movedim(torch.movedim(codes, -1 - self.n_dims, -1) @ patches, -1, -1 - self.n_dims)


class SparseCoding2d(_SparseCodingNd):
    r"""Sparse codes of every patch of an image, in the place of ``Conv2d`` followed by ``ReLU``.

    The code of a patch is the exact minimiser of :math:`\tfrac12 \|p - a D\|^2 + \sum_j \lambda_{1,j} a_j +
    \tfrac{\lambda_2}{2} \|a\|^2` over :math:`a \ge 0`: atoms compete to explain it, where a convolution lets each
    respond on its own. Patches are never laid out in memory.

    Args:
        in_channels: channels of the image.
        n_atoms: number of atoms, the channels of the output.
        kernel_size: height and width of a patch.
        stride: step between patches.
        padding: zeros around the image; None keeps the size at stride 1 (odd kernels only).
        dilation: step between the pixels of a patch.
        lam1: initial l1 penalty, at least 0; learned unless ``learn_lam1=False``.
        lam2: l2 penalty, at least 0, fixed. Above 0 it makes the code unique.
        per_atom: learn one ``lam1`` per atom instead of one for the layer.
        learn_lam1: whether ``lam1`` is trained.
        unit_norm: use the atoms scaled to unit norm, whatever the length of the parameter.
        solver: one of :func:`torchscn.list_solvers`.
        tol: relative accuracy of the codes, see :func:`torchscn.sparse_code`.
        max_iter: cap on the solver's iterations; None is its own.
        grad: ``"implicit"``, or ``"unrolled"`` with ``solver="fista"``.

    Attributes:
        dictionary: the atoms, ``(n_atoms, in_channels, height, width)`` like ``Conv2d.weight``.
        lam1: the l1 penalty, a scalar or ``(n_atoms,)``. Keep it non-negative while training with
            :func:`attach_projection`; a negative entry counts as 0.

    Shape:
        - Input: ``(batch, in_channels, height, width)``, batch optional
        - Output: ``(batch, n_atoms, height', width')``, in channels-last memory format

    Example:
        >>> net = nn.Sequential(SparseCoding2d(3, 16), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 3), nn.ReLU())
        >>> net(torch.randn(4, 3, 32, 32)).shape
        torch.Size([4, 8, 30, 30])
    """

    n_dims = 2


class SparseCoding1d(_SparseCodingNd):
    """Sparse codes of every patch of a sequence, in the place of ``Conv1d`` followed by ``ReLU``.

    Arguments and attributes as for :class:`SparseCoding2d`, with one number for each geometry argument.

    Shape:
        - Input: ``(batch, in_channels, length)``, batch optional
        - Output: ``(batch, n_atoms, length')``

    Example:
        >>> SparseCoding1d(1, 8, kernel_size=5, stride=2)(torch.randn(4, 1, 100)).shape
        torch.Size([4, 8, 50])
    """

    n_dims = 1


def project_lam1(model: nn.Module) -> None:
    """Clamp the ``lam1`` of every sparse coding layer in ``model`` at 0, in place.

    Example:
        >>> layer = SparseCoding(4, 2)
        >>> _ = layer.lam1.data.fill_(-1.0)
        >>> project_lam1(layer)
        >>> layer.lam1.item()
        0.0
    """
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, _SparseCodingBase):
                module.lam1.clamp_(min=0)


def attach_projection(optimizer: Optimizer, model: nn.Module) -> RemovableHandle:
    """Call :func:`project_lam1` on ``model`` after every ``optimizer.step()``.

    Returns:
        A handle whose ``remove()`` ends it.

    Example:
        >>> model = nn.Sequential(SparseCoding2d(3, 16), nn.ReLU())
        >>> handle = attach_projection(torch.optim.SGD(model.parameters(), lr=0.1), model)
    """

    def project(*_: Any) -> None:
        project_lam1(model)

    return optimizer.register_step_post_hook(project)
