"""The examples of docs/extending.md run, and add what they say to what the package knows."""

import re
from pathlib import Path

import pytest
import torch

import torchscn
from torchscn.constraints import CONSTRAINTS
from torchscn.data import catalog
from torchscn.gradients import GRADIENT_RULES
from torchscn.models import MODELS
from torchscn.solvers import SOLVERS
from torchscn.training import TrainConfig, train

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """All examples of the page, run one after the other; what they registered is forgotten afterwards."""
    registries = (SOLVERS, GRADIENT_RULES, CONSTRAINTS, MODELS)
    before = [dict(registry) for registry in registries]
    monkeypatch.setattr(catalog, "DATASETS", catalog.DATASETS)
    names: dict[str, object] = {"__name__": "extending"}
    try:
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
            exec(compile(block, str(PAGE), "exec"), names)
        yield names
    finally:
        for registry, known in zip(registries, before, strict=True):
            registry.clear()
            registry.update(known)


def test_every_part_can_be_used_by_its_name(page, tmp_path):
    assert torchscn.SparseCoding(4, 3, solver="projected_gradient", grad="diagonal")(torch.randn(2, 4)).shape == (2, 3)
    config = TrainConfig(data="stripes", model="tiny", stem=4, epochs=2, batch_size=16)
    assert train(config, tmp_path, quiet=True).metrics[-1]["test_error"] == 0


def test_a_constraint_differentiates(page):
    """Capped codes do not move with the right-hand side; the others do as finite differences say."""
    cap, problem = page["Capped"], page["problem"]
    gram, rhs = problem.gram.double(), problem.rhs[:6].double().requires_grad_()
    constraint = cap(torch.full((5,), 0.2, dtype=torch.float64))

    def codes(rhs):
        return page["implicit"](page["Problem"](rhs, gram, constraint=constraint), torchscn.Options(tol=1e-12))

    assert (codes(rhs) == 0.2).any()
    assert torch.autograd.gradcheck(codes, (rhs,))


def test_a_constraint_compiles(page):
    problem = page["problem"]
    operator = torch.ops.torchscn.solve.default
    arguments = (
        problem.rhs,
        problem.gram,
        None,
        None,
        "capped",
        problem.constraint.cap,
        None,
        None,
        "fista",
        1e-6,
        None,
        "signal",
    )
    torch.library.opcheck(operator, arguments)


def test_a_constraint_maps(page):
    problem, cap = page["problem"], page["Capped"]

    def codes(bound):
        return page["implicit"](page["Problem"](problem.rhs, problem.gram, constraint=cap(bound)), torchscn.Options())

    bounds = torch.rand(3, 5)
    torch.testing.assert_close(torch.func.vmap(codes)(bounds), torch.stack([codes(bound) for bound in bounds]))
