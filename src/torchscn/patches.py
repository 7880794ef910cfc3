"""Codes of the patch at every position of a signal or image.

``D x`` over all patches is a convolution, so patches are never extracted.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from torchscn.checks import check_number
from torchscn.constraints import Constraint
from torchscn.functional import enlarged, normal_problem, scaled_constraint
from torchscn.kernels import VanishingAtomError
from torchscn.options import Options
from torchscn.problem import Affine, gram_matrix
from torchscn.solvers import SOLVERS
from torchscn.tensors import check_penalty, check_same_kind, check_tensor, full_precision, laid_out, no_autocast

__all__ = ["Geometry", "PatchModel", "infer_patches"]

# By number of dimensions: the convolution, the names of its axes, and its fastest memory format.
_CONVOLUTIONS: dict[int, tuple[Any, str, torch.memory_format | None]] = {
    1: (F.conv1d, "length", None),
    # Channels last also makes (positions, atoms) a view of the result.
    2: (F.conv2d, "height, width", torch.channels_last),
}


@dataclass(frozen=True)
class Geometry:
    """Size and position of the patches; every field holds one number per dimension."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def make(cls, n_dims: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any) -> "Geometry":
        """Make one from a single number or one per dimension; a padding of None keeps the size at stride 1.

        Example:
            >>> Geometry.make(2, 3, 1, None, 1).padding
            (1, 1)
        """
        kernel = _per_dim("kernel_size", kernel_size, n_dims, at_least=1)
        steps = _per_dim("dilation", dilation, n_dims, at_least=1)
        return cls(
            kernel,
            _per_dim("stride", stride, n_dims, at_least=1),
            _same_padding(kernel, steps) if padding is None else _per_dim("padding", padding, n_dims, at_least=0),
            steps,
        )

    @property
    def n_dims(self) -> int:
        return len(self.kernel_size)

    def correlate(self, x: Tensor, dictionary: Tensor) -> Tensor:
        """``D x`` at every position, atoms last."""
        convolution, _, memory_format = _CONVOLUTIONS[self.n_dims]
        if memory_format is not None and x.dim() == self.n_dims + 2:
            x = laid_out(x, memory_format)
        rhs: Tensor = convolution(x, dictionary, None, self.stride, self.padding, self.dilation)
        return rhs.movedim(self.channel_dim, -1)

    @property
    def channel_dim(self) -> int:
        """The dimension of the channels, counted from the end so that unbatched input works."""
        return -1 - self.n_dims

    def check_input(self, x: Tensor, in_channels: int) -> None:
        """Check that ``x`` has the right axes and channels, and room for a patch."""
        if x.dim() not in (self.n_dims + 1, self.n_dims + 2) or x.shape[self.channel_dim] != in_channels:
            sizes = _CONVOLUTIONS[self.n_dims][1]
            raise ValueError(
                f"x must have shape (batch, {in_channels}, {sizes}), batch optional; got {tuple(x.shape)}."
            )
        spans = zip(x.shape[-self.n_dims :], self.kernel_size, self.padding, self.dilation, strict=True)
        if any(size + 2 * p < d * (k - 1) + 1 for size, k, p, d in spans):
            raise ValueError(
                f"x of shape {tuple(x.shape)} is smaller than one patch: kernel_size {self.kernel_size}, "
                f"dilation {self.dilation}, padding {self.padding}."
            )

    def __str__(self) -> str:
        text = f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"
        return text if set(self.dilation) == {1} else f"{text}, dilation={self.dilation}"


def _per_dim(what: str, value: Any, n_dims: int, at_least: int) -> tuple[int, ...]:
    """One number per dimension, from a single number or one per dimension."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * n_dims
    if len(values) != n_dims:
        raise ValueError(f"{what} must be one number or {n_dims}; got {value!r}.")
    for number in values:
        check_number(what, number, at_least=at_least, whole=True)
    return values


def _same_padding(kernel_size: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    """The padding that keeps the size at stride 1."""
    if any(k % 2 == 0 for k in kernel_size):
        raise ValueError(f"kernel_size {kernel_size} is even, so no padding keeps the size; give padding explicitly.")
    return tuple(d * (k - 1) // 2 for k, d in zip(kernel_size, dilation, strict=True))


class PatchModel(NamedTuple):
    """Atoms and penalties for patches, and where the patches are."""

    dictionary: Tensor  # (n_atoms, in_channels, *kernel_size)
    lam1: Tensor  # one for all atoms or one per atom
    lam2: float | Tensor
    geometry: Geometry
    constraint: Constraint

    @property
    def atom_dim(self) -> int:
        return self.geometry.channel_dim

    def scaled(self, factor: Tensor) -> "PatchModel":
        lam2, constraint = self.lam2 * factor * factor, scaled_constraint(self.constraint, factor)
        return self._replace(
            dictionary=self.dictionary * factor, lam1=self.lam1 * factor, lam2=lam2, constraint=constraint
        )

    def check(self, x: Any) -> tuple[Tensor, "PatchModel"]:
        x, dictionary, lam1 = full_precision(x, self.dictionary, self.lam1)
        check_tensor("x", x)
        self.geometry.check_input(x, dictionary.shape[1])
        check_same_kind("x", x, "the dictionary", dictionary)
        check_penalty("lam1", lam1, dictionary, len(dictionary))
        return x, self._replace(dictionary=dictionary, lam1=lam1)

    def normal_form(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.geometry.correlate(x, self.dictionary), gram_matrix(self.dictionary, self.lam2), self.lam1


def infer_patches(x: Tensor, model: PatchModel, affine: Affine, options: Options) -> Tensor:
    """``codes * scale + offset`` of every patch, with one scale and offset per atom, without a gradient.

    For evaluation: the codes overwrite the correlations, already scaled, so memory is traversed only once.
    """
    x, model = model.check(x)
    affine = Affine(*full_precision(*affine))
    for name, values in affine._asdict().items():
        _check_per_atom(name, values, model.dictionary)
    with torch.no_grad(), no_autocast(x):
        try:
            return _infer(x, model, affine, options)
        except VanishingAtomError:
            larger, factor = enlarged(model)
            return _infer(x, larger, Affine(affine.scale * factor, affine.offset), options)


def _infer(x: Tensor, model: PatchModel, affine: Affine, options: Options) -> Tensor:
    rhs, gram, lam1 = model.normal_form(x)
    problem = replace(normal_problem(rhs, gram, lam1, None, model.constraint), affine=affine, in_place=True)
    codes = SOLVERS[options.solver](problem, options).codes
    return codes.reshape(rhs.shape).movedim(-1, model.atom_dim)


def _check_per_atom(what: str, value: Tensor, dictionary: Tensor) -> None:
    check_tensor(what, value)
    check_same_kind(what, value, "the dictionary", dictionary)
    if value.shape != dictionary.shape[:1]:
        raise ValueError(
            f"{what} must have one value per atom, shape ({len(dictionary)},); got shape {tuple(value.shape)}."
        )
