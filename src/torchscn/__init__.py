"""Deep sparse coding for PyTorch: exact, differentiable, fast."""

from importlib.metadata import version

from torchscn.functional import nonneg_qp, solve, sparse_code
from torchscn.layers import SparseCoding, SparseCoding1d, SparseCoding2d, attach_projection, project_lam1
from torchscn.models import create_model, list_models
from torchscn.network import Bottleneck, LayerOptions, Network, Row
from torchscn.objective import kkt_residual, objective
from torchscn.solvers import Solution, list_solvers
from torchscn.weights import list_pretrained

__version__ = version("torchscn")

__all__ = [
    "Bottleneck",
    "LayerOptions",
    "Network",
    "Row",
    "Solution",
    "SparseCoding",
    "SparseCoding1d",
    "SparseCoding2d",
    "attach_projection",
    "create_model",
    "kkt_residual",
    "list_models",
    "list_pretrained",
    "list_solvers",
    "nonneg_qp",
    "objective",
    "project_lam1",
    "solve",
    "sparse_code",
]
