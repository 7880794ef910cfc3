"""When the Triton kernels are used, and what is said when they are not."""

import warnings
from importlib import metadata

import pytest
import torch

import torchscn
from torchscn.constraints import NonNegative, SumTo
from torchscn.kernels import active_kernel, available_kernels, gpu, gpu_kernel, has_own_sweeps, sweeps_for
from torchscn.kernels.gpu import MOST_ATOMS, triton_sweeps_for, why_no_triton
from torchscn.kernels.torch import torch_sweeps
from torchscn.problem import Problem


def make_problem(n_atoms: int = 4, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Problem:
    return Problem(torch.ones(2, n_atoms, dtype=dtype, device=device), torch.eye(n_atoms, dtype=dtype, device=device))


@pytest.fixture(autouse=True)
def forget():
    """Every warning is new, and Triton is looked for again."""
    gpu._say_once.cache_clear()
    why_no_triton.cache_clear()
    yield
    why_no_triton.cache_clear()


def pretend_version(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    def find(name: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(gpu.metadata, "version", find)


def test_cpu_tensors_are_left_to_the_cpu(monkeypatch):
    monkeypatch.delenv("TORCHSCN_KERNEL", raising=False)
    assert triton_sweeps_for(make_problem()) is None
    assert has_own_sweeps(make_problem())


def test_devices_without_a_kernel_are_left_to_torch(monkeypatch):
    monkeypatch.delenv("TORCHSCN_KERNEL", raising=False)
    assert sweeps_for(make_problem(device="meta")) is torch_sweeps
    assert not has_own_sweeps(make_problem(device="meta"))


def test_it_can_be_chosen(triton):
    assert triton_sweeps_for(make_problem()) is not None
    assert gpu_kernel() == "triton"


@pytest.mark.parametrize("wanted", ["torch", "auto"])
def test_others_can_be_chosen(wanted, monkeypatch):
    pretend_version(monkeypatch, "3.7.1")
    monkeypatch.setenv("TORCHSCN_KERNEL", wanted)
    assert gpu_kernel() == ("torch" if wanted == "torch" else "triton")
    assert triton_sweeps_for(make_problem()) is None  # on the CPU


def test_cpu_kernels_do_not_hinder_the_gpu(monkeypatch):
    pretend_version(monkeypatch, "3.7.1")
    monkeypatch.setenv("TORCHSCN_KERNEL", "avx2")
    assert gpu_kernel() == "triton"


@pytest.mark.parametrize(
    ("version", "reason"), [(None, "Triton is not installed"), ("3.2.0", "Triton 3.2.0 is too old, 3.3 or newer")]
)
def test_missing_or_old_triton(version, reason, monkeypatch):
    pretend_version(monkeypatch, version)
    monkeypatch.delenv("TORCHSCN_KERNEL", raising=False)
    assert gpu_kernel() == "torch"
    monkeypatch.setenv("TORCHSCN_KERNEL", "triton")
    with pytest.raises(RuntimeError, match=f"TORCHSCN_KERNEL='triton' is not available here: {reason}"):
        torchscn.sparse_code(torch.ones(2, 4), torch.eye(4))


def test_names_that_do_not_exist(monkeypatch):
    monkeypatch.setenv("TORCHSCN_KERNEL", "warp")
    with pytest.raises(ValueError, match=r"TORCHSCN_KERNEL='warp' is not a kernel. Use auto, torch, .*triton"):
        gpu_kernel()


@pytest.mark.parametrize("version", ["3.3.0", "3.10.1", "4.0.0rc1", "4.0rc1"])
def test_new_triton(version, monkeypatch):
    pretend_version(monkeypatch, version)
    assert why_no_triton() == ""


def test_amd_devices_are_left_to_torch(monkeypatch):
    pretend_version(monkeypatch, "3.7.1")
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert "AMD" in why_no_triton()


def test_cpu_tensors_need_the_interpreter(monkeypatch):
    monkeypatch.setenv("TORCHSCN_KERNEL", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="these are on the CPU; unset it"):
        torchscn.sparse_code(torch.ones(2, 4), torch.eye(4))


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (make_problem(dtype=torch.float64), "solve in float32, not in float64"),
        (make_problem(MOST_ATOMS + 1), "take at most 512 atoms, not 513"),
    ],
)
def test_what_they_do_not_take_is_said_once(problem, reason, triton):
    with pytest.warns(RuntimeWarning, match=f"{reason}; plain torch"):
        assert triton_sweeps_for(problem) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert triton_sweeps_for(problem) is None
    assert sweeps_for(problem) is not None


def test_what_is_solved_one_by_one_is_left_alone(triton):
    problem = make_problem()
    own = Problem(problem.rhs, problem.gram.expand(2, 4, 4), constraint=NonNegative())
    summed = Problem(problem.rhs, problem.gram, constraint=SumTo(torch.ones(2, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert triton_sweeps_for(own) is None
        assert triton_sweeps_for(summed) is None


@pytest.mark.parametrize(("capability", "chosen"), [((7, 5), False), ((8, 0), True), ((9, 0), True), ((12, 0), True)])
def test_old_devices_are_left_to_torch(capability, chosen, monkeypatch):
    pretend_version(monkeypatch, "3.7.1")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    gpu._is_new_enough.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert gpu._is_new_enough(torch.device("cuda")) is chosen
    assert ("Some GPU does not have" in str(caught[0].message)) if caught else chosen
    gpu._is_new_enough.cache_clear()


class OnGPU:
    """What a tensor says of its device."""

    is_cuda = True
    device = "cuda:0"


def test_old_devices_cannot_be_insisted_on(monkeypatch):
    pretend_version(monkeypatch, "3.7.1")
    monkeypatch.setattr(gpu, "_is_new_enough", lambda device: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    assert not gpu._is_chosen(OnGPU())
    monkeypatch.setenv("TORCHSCN_KERNEL", "triton")
    with pytest.raises(RuntimeError, match=r"need compute capability 8.0, which Some GPU does not have"):
        gpu._is_chosen(OnGPU())


def test_the_cpu_keeps_its_kernel_beside_it(triton):
    assert active_kernel() == available_kernels()[-1]
