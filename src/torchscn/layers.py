"""Sparse coding as modules: thin wrappers around the functions, with torch's constructor conventions."""

import math
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torchscn.checks import check_number
from torchscn.constraints import as_constraint
from torchscn.functional import Model, SignalModel, certify_codes, code
from torchscn.gradients import GRADIENT_RULES, check_names
from torchscn.options import CodingOptions, accept_options
from torchscn.patches import Geometry, PatchModel, infer_patches
from torchscn.problem import Affine, Solution
from torchscn.solvers import SOLVERS
from torchscn.tensors import check_tensor

__all__ = [
    "CodingLayer",
    "SparseCoding",
    "SparseCoding1d",
    "SparseCoding2d",
    "attach_projection",
    "project_atoms",
    "project_lam1",
]

T = TypeVar("T")


class _Part(Generic[T]):
    """A field of a frozen object that a layer holds, read and assigned as an attribute of the layer itself.

    Args:
        holder: the layer's attribute that holds the object; an assignment replaces it by one with the new value.
    """

    def __init__(self, holder: str):
        self.holder = holder

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, layer: Any, owner: type | None = None) -> T:
        found: Any = self if layer is None else getattr(getattr(layer, self.holder), self.name)
        value: T = found
        return value

    def __set__(self, layer: Any, value: T) -> None:
        setattr(layer, self.holder, replace(getattr(layer, self.holder), **{self.name: value}))


class CodingLayer(nn.Module):
    """Dictionary, penalties and solver options, common to all layers; a base class for your own layers.

    Args:
        atom_shape: shape of one atom.
        n_atoms: number of atoms.
        options: penalties, initial values and solver.
        device, dtype: of the parameters.

    Attributes:
        dictionary: the atoms, ``(n_atoms, *atom_shape)``.
        lam1: the l1 penalty, a scalar or ``(n_atoms,)``.
        lam2: the l2 penalty in use.
        options: see :class:`torchscn.CodingOptions`. ``unit_norm``, ``solver``, ``tol``, ``max_iter``, ``grad`` and
            ``stop`` can be read and assigned on the layer itself, ``constraint`` too.
    """

    dictionary: nn.Parameter
    lam1: nn.Parameter
    lam2: float | Tensor
    unit_norm = _Part[bool]("options")
    solver = _Part[str]("options")
    tol = _Part[float]("options")
    max_iter = _Part[int | None]("options")
    grad = _Part[str]("options")
    stop = _Part[str]("options")
    constraint = _Part[str]("options")

    def __init__(self, atom_shape: tuple[int, ...], n_atoms: int, options: CodingOptions, device: Any, dtype: Any):
        super().__init__()
        check_number("n_atoms", n_atoms, at_least=1, whole=True)
        check_names(options)
        self.n_atoms = n_atoms
        self.options = options.part(CodingOptions)
        self.lam2 = options.lam2
        dictionary = torch.empty((n_atoms, *atom_shape), device=device, dtype=dtype)
        check_tensor("the dictionary", dictionary)
        self.dictionary = nn.Parameter(dictionary)
        lam1 = dictionary.new_empty((n_atoms,) if options.per_atom else ())
        self.lam1 = nn.Parameter(lam1, requires_grad=options.learn_lam1)
        self.reset_parameters()

    @property
    def options(self) -> CodingOptions:
        """Penalties, initial values and solver; those that cannot be used are refused when assigned."""
        return self._options

    @options.setter
    def options(self, options: CodingOptions) -> None:
        options = _check_options(options, CodingOptions())
        SOLVERS[options.solver], GRADIENT_RULES[options.grad]  # whether they exist; that they match is checked in use
        self._options = options

    def reset_parameters(self) -> None:
        """Draw Gaussian atoms, of about unit norm unless ``init`` says otherwise; set ``lam1`` to its initial value."""
        n_features = self.dictionary[0].numel()
        std = 1 / math.sqrt(n_features) if self.options.init == "unit" else 1 / n_features
        nn.init.normal_(self.dictionary, std=std)
        nn.init.constant_(self.lam1, self.options.lam1)

    def atoms(self) -> Tensor:
        """The dictionary in use: the parameter itself, or scaled to unit norm with ``unit_norm``."""
        if not self.unit_norm:
            return self.dictionary
        return F.normalize(self.dictionary.flatten(1)).view_as(self.dictionary)

    def penalties(self) -> tuple[Tensor, float | Tensor]:
        """``lam1`` and ``lam2`` in use; a negative ``lam1`` counts as 0. At exactly 0 the gradient still passes."""
        return self.lam1.clamp(min=0), self.lam2

    def coding_model(self) -> Model:
        """Atoms and penalties in use, in the form the functions accept; every kind of layer has its own."""
        raise TypeError(f"{type(self).__name__} does not define coding_model().")

    def forward(self, x: Tensor) -> Tensor:
        return code(x, self.coding_model(), self.options)

    def solve(self, x: Tensor) -> Solution:
        """Codes of ``x`` with their certificate, without a gradient.

        ``codes`` has the shape of the layer's output; ``residual`` and ``converged`` lack the atom dimension. Every
        signal is judged by itself, whatever ``stop`` says.
        """
        return certify_codes(x, self.coding_model(), replace(self.options, stop="signal"))

    def _shape_repr(self) -> str:
        return f"{self.dictionary.shape[1]}, {self.n_atoms}"

    def extra_repr(self) -> str:
        tied = "" if self.lam1.dim() == 0 else ", per_atom=True"
        unit = ", unit_norm=True" if self.unit_norm else ""
        cap = "" if self.max_iter is None else f", max_iter={self.max_iter}"
        rule = "" if self.grad == "implicit" else f", grad={self.grad!r}"
        lam2 = self.lam2.item() if isinstance(self.lam2, Tensor) else self.lam2
        allowed = "" if self.constraint == "non_negative" else f", constraint={self.constraint!r}"
        solver = f"solver={self.solver!r}, tol={self.tol:g}{cap}{rule}{allowed}"
        return f"{self._shape_repr()}, lam2={lam2:g}{tied}{unit}, {solver}"


def _check_options(options: Any, default: CodingOptions) -> CodingOptions:
    if options is None:
        return default
    if not isinstance(options, CodingOptions):
        raise TypeError(f"options must be torchscn.CodingOptions; got {type(options).__name__}.")
    return options


class SparseCoding(CodingLayer):
    r"""Sparse codes of feature vectors; replaces ``Linear`` followed by ``ReLU``.

    Args:
        in_features: length of a signal.
        n_atoms: number of atoms, the length of a code.
        lam1: initial l1 penalty, at least 0; learned unless ``learn_lam1=False``.
        lam2: l2 penalty, at least 0, fixed. A value above 0 makes the code unique.
        per_atom: learn one ``lam1`` per atom instead of one for the layer.
        learn_lam1: whether ``lam1`` is trained.
        unit_norm: use the atoms scaled to unit norm, whatever the norm of the parameter.
        solver: one of :func:`torchscn.list_solvers`.
        tol: relative accuracy of the codes, see :func:`torchscn.sparse_code`.
        max_iter: cap on the solver's iterations; None uses its own.
        grad: ``"implicit"``, or ``"unrolled"`` with ``solver="fista"``.
        stop: whether convergence is judged per ``"signal"`` or per ``"block"`` of neighbours.
        constraint: which codes are allowed: ``"non_negative"``, ``"signed"`` or ``"sum_to_one"``.
        init: initial atoms: ``"unit"`` for about unit norm, ``"small"`` for a standard deviation of 1 / n_features.
        options: all of the above except the shape, as one object; options given by name override it.
        device, dtype: as everywhere in torch.

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

    @accept_options(CodingOptions, stop="signal")
    def __init__(
        self,
        in_features: int,
        n_atoms: int,
        *,
        options: CodingOptions | None = None,
        device: Any = None,
        dtype: Any = None,
        **changes: Any,
    ):
        check_number("in_features", in_features, at_least=1, whole=True)
        options = _check_options(options, CodingOptions(stop="signal")).change(**changes)
        super().__init__((in_features,), n_atoms, options, device, dtype)
        self.in_features = in_features

    def coding_model(self) -> SignalModel:
        return SignalModel(self.atoms(), *self.penalties(), as_constraint(self.constraint))

    def reconstruct(self, codes: Tensor) -> Tensor:
        """The signals ``(..., in_features)`` that the codes represent."""
        return codes @ self.atoms()


class _SparseCodingNd(CodingLayer):
    """Sparse codes of the patch at every position."""

    n_dims: int
    kernel_size = _Part[tuple[int, ...]]("geometry")
    stride = _Part[tuple[int, ...]]("geometry")
    padding = _Part[tuple[int, ...]]("geometry")
    dilation = _Part[tuple[int, ...]]("geometry")

    @accept_options(CodingOptions)
    def __init__(
        self,
        in_channels: int,
        n_atoms: int,
        kernel_size: int | tuple[int, ...] = 3,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | None = None,
        dilation: int | tuple[int, ...] = 1,
        *,
        options: CodingOptions | None = None,
        device: Any = None,
        dtype: Any = None,
        **changes: Any,
    ):
        check_number("in_channels", in_channels, at_least=1, whole=True)
        geometry = Geometry.make(self.n_dims, kernel_size, stride, padding, dilation)
        options = _check_options(options, CodingOptions()).change(**changes)
        super().__init__((in_channels, *geometry.kernel_size), n_atoms, options, device, dtype)
        self.in_channels = in_channels
        self.geometry = geometry

    def coding_model(self) -> PatchModel:
        return PatchModel(self.atoms(), *self.penalties(), self.geometry, as_constraint(self.constraint))

    def _shape_repr(self) -> str:
        return f"{super()._shape_repr()}, {self.geometry}"

    def infer(self, x: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
        """``codes * scale + offset``, one value per atom each, without a gradient: a layer and its norm in one pass."""
        return infer_patches(x, self.coding_model(), Affine(scale, offset), self.options)

    def reconstruct(self, codes: Tensor) -> Tensor:
        """The patches that the codes represent, one per position, flattened over channels and kernel.

        Shape ``(batch, in_channels * kernel elements, *positions)``: flattened over positions, the layout of
        :func:`torch.nn.functional.unfold`.
        """
        channels = self.geometry.channel_dim
        return (codes.movedim(channels, -1) @ self.atoms().flatten(1)).movedim(-1, channels)


class SparseCoding2d(_SparseCodingNd):
    r"""Sparse codes of every patch of an image; replaces ``Conv2d`` followed by ``ReLU``.

    The code of a patch is the exact minimiser of :math:`\tfrac12 \|p - a D\|^2 + \sum_j \lambda_{1,j} a_j +
    \tfrac{\lambda_2}{2} \|a\|^2` over :math:`a \ge 0`: atoms compete to explain it, where a convolution lets each
    respond on its own. Patches are never extracted in memory.

    Args:
        in_channels: channels of the image.
        n_atoms: number of atoms, the channels of the output.
        kernel_size: height and width of a patch.
        stride: step between patches.
        padding: zeros around the image; None keeps the size at stride 1 (odd kernels only).
        dilation: step between the pixels of a patch.
        lam1: initial l1 penalty, at least 0; learned unless ``learn_lam1=False``.
        lam2: l2 penalty, at least 0, fixed. A value above 0 makes the code unique.
        per_atom: learn one ``lam1`` per atom instead of one for the layer.
        learn_lam1: whether ``lam1`` is trained.
        unit_norm: use the atoms scaled to unit norm, whatever the norm of the parameter.
        solver: one of :func:`torchscn.list_solvers`.
        tol: relative accuracy of the codes, see :func:`torchscn.sparse_code`.
        max_iter: cap on the solver's iterations; None uses its own.
        grad: ``"implicit"``, or ``"unrolled"`` with ``solver="fista"``.
        stop: whether convergence is judged per ``"signal"`` or per ``"block"`` of neighbours.
        constraint: which codes are allowed: ``"non_negative"``, ``"signed"`` or ``"sum_to_one"``.
        init: initial atoms: ``"unit"`` for about unit norm, ``"small"`` for a standard deviation of 1 / n_features.
        options: all of the above except the shape, as one object; options given by name override it.
        device, dtype: as everywhere in torch.

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
    """Sparse codes of every patch of a sequence; replaces ``Conv1d`` followed by ``ReLU``.

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
            if isinstance(module, CodingLayer):
                module.lam1.clamp_(min=0)


def project_atoms(model: nn.Module, max_norm: float) -> None:
    """Scale the atoms of every sparse coding layer in ``model`` with a larger norm down to ``max_norm``, in place.

    Example:
        >>> layer = SparseCoding(4, 2)
        >>> _ = layer.dictionary.data.copy_(torch.tensor([[3.0, 0, 0, 4.0], [0, 0.5, 0, 0]]))
        >>> project_atoms(layer, max_norm=1.0)
        >>> layer.dictionary.norm(dim=1)
        tensor([1.0000, 0.5000], grad_fn=...)
    """
    _check_max_norm(max_norm)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, CodingLayer):
                module.dictionary.copy_(torch.renorm(module.dictionary, 2, 0, max_norm))


def _check_max_norm(max_norm: float) -> None:
    check_number("max_norm", max_norm, at_least=0)
    if max_norm == 0:
        raise ValueError("max_norm must be above 0: a bound of 0 would leave no atoms.")


def attach_projection(optimizer: Optimizer, model: nn.Module, max_norm: float | None = None) -> RemovableHandle:
    """Call :func:`project_lam1` on ``model`` after every ``optimizer.step()``, and :func:`project_atoms` if bounded.

    Args:
        optimizer: whose steps are followed by a projection.
        model: holds the sparse coding layers.
        max_norm: bound on the norm of atoms; None: no bound.

    Returns:
        A handle; call its ``remove()`` to stop.

    Example:
        >>> model = nn.Sequential(SparseCoding2d(3, 16), nn.ReLU())
        >>> handle = attach_projection(torch.optim.SGD(model.parameters(), lr=0.1), model)
    """
    if max_norm is not None:
        _check_max_norm(max_norm)

    def project(*_: Any) -> None:
        project_lam1(model)
        if max_norm is not None:
            project_atoms(model, max_norm)

    return optimizer.register_step_post_hook(project)
