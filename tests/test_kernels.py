"""The kernels: alike in what they return, safe at the border to C++, replaced where they cannot be built or loaded."""

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from problems import DICTIONARIES, random_dictionary, signals
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.testing import assert_close

from torchscn.constraints import Constraint, NonNegative, OnSupport
from torchscn.kernels import SweepRule, active_kernel, available_kernels, cpu, sweeps_for
from torchscn.kernels.torch import torch_sweeps
from torchscn.problem import Affine, Problem, Result, normal_form

ROOT = Path(__file__).parent.parent
CHECK_PROGRAM = ROOT / "tests" / "kernel_check.cpp"
CPU_SOURCES = Path(cpu.__file__).with_name("cpu")
TIGHT = SweepRule(tol=1e-12, max_iter=20_000, by_block=False)
# As setup.py: name, width of a register, registers per row of a block, flags.
BUILDS = [
    ("generic", 16, 2, []),
    ("avx2", 32, 2, ["-mavx2", "-mfma"]),
    ("avx512", 64, 4, ["-mavx512f", "-mavx512dq", "-mprefer-vector-width=512"]),
]

needs_kernel = pytest.mark.skipif(len(available_kernels()) == 1, reason="the compiled kernel is not installed")


def make_problem(n_signals: int = 70, n_atoms: int = 9, kind: str = "random", dtype=torch.float64) -> Problem:
    D, x = DICTIONARIES[kind](n_atoms, 14).to(dtype), signals(n_signals, 14).to(dtype)
    return Problem(*normal_form(x, D, 0.1, 0.02))


def with_everything(problem: Problem) -> Problem:
    """The problem with a tensor in every place that takes one."""
    n_signals, n_atoms = problem.rhs.shape
    per_code = signals(n_signals, n_atoms, seed=1).to(problem.rhs.dtype)
    per_atom = torch.linspace(0.1, 1, n_atoms, dtype=problem.rhs.dtype)
    constraint = OnSupport(per_code)
    return replace(problem, shift=per_atom, init=per_code, constraint=constraint, affine=Affine(per_atom, -per_atom))


def solve(problem: Problem, rule: SweepRule = TIGHT) -> Result:
    return sweeps_for(problem)(problem, rule)


# What every kernel returns


@pytest.mark.parametrize("kind", DICTIONARIES)
@pytest.mark.parametrize("by_block", [False, True])
def test_agrees_with_torch(kind, by_block, kernel):
    problem, rule = make_problem(kind=kind), TIGHT._replace(by_block=by_block)
    result, expected = solve(problem, rule), torch_sweeps(problem, rule)
    assert_close(result.codes, expected.codes, atol=1e-9, rtol=0)
    assert result.converged.all()
    assert 0 < result.mean_iter <= result.n_iter


@pytest.mark.parametrize("kind", ["random", "correlated", "zero_atom"])
def test_agrees_with_torch_on_a_support(kind, kernel):
    problem = with_everything(make_problem(kind=kind))
    result, expected = solve(problem), torch_sweeps(problem, TIGHT)
    assert_close(result.codes, expected.codes, atol=1e-9, rtol=0)
    assert result.converged.all()
    inner = solve(replace(problem, affine=None)).codes
    assert inner[problem.constraint.mask <= 0].count_nonzero() == 0
    assert_close(result.codes, problem.finish(inner))


@pytest.mark.parametrize("on_support", [False, True])
def test_result_is_optimal(on_support, kernel):
    problem = replace(with_everything(make_problem()), affine=None)
    problem = problem if on_support else replace(problem, constraint=NonNegative())
    assert problem.residual(solve(problem).codes).max() < 1e-9


@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tol_zero_runs_every_sweep(by_block, dtype, kernel):
    rule = SweepRule(tol=0, max_iter=7, by_block=by_block)
    separate = Problem(signals(70, 5).to(dtype), torch.eye(5, dtype=dtype))  # one sweep solves it
    result = solve(separate, rule)
    assert (result.n_iter, result.mean_iter) == (7, 7.0)
    assert result.converged.all()
    entangled = replace(separate, rhs=torch.ones(70, 5, dtype=dtype), gram=0.5 + 0.5 * separate.gram)
    result = solve(entangled, rule)
    assert (result.n_iter, result.mean_iter) == (7, 7.0)
    assert not result.converged.any()


def test_tol_zero_knows_which_signals_changed(kernel):
    """Also where a kernel would judge neighbours as a whole."""
    problem = Problem(torch.ones(70, 5), 0.5 + 0.5 * torch.eye(5))
    problem.rhs[::2] = -1.0
    result = solve(problem, SweepRule(tol=0, max_iter=3, by_block=True))
    assert result.converged.tolist() == [True, False] * 35


def test_tolerance_too_small_for_the_number_type_still_stops(kernel):
    result = solve(Problem(torch.ones(3, 5), torch.eye(5)), SweepRule(tol=1e-300, max_iter=50, by_block=False))
    assert result.n_iter == 2
    assert result.converged.all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_signal_is_nan_and_alone(bad, kernel):
    problem = with_everything(make_problem())
    clean = solve(problem).codes
    problem.rhs[3, 5] = bad
    result = solve(problem)
    others = torch.arange(70) != 3
    assert result.codes[3].isnan().all()
    assert result.converged.tolist() == others.tolist()
    assert_close(result.codes[others], clean[others], atol=1e-9, rtol=0)


@pytest.mark.parametrize(("n_signals", "n_atoms"), [(0, 9), (5, 0), (0, 0)])
def test_nothing_to_solve(n_signals, n_atoms, kernel):
    result = solve(Problem(torch.empty(n_signals, n_atoms), torch.empty(n_atoms, n_atoms)))
    assert result.codes.shape == (n_signals, n_atoms)
    assert result.converged.tolist() == [True] * n_signals
    assert (result.n_iter, result.mean_iter) == (0, 0.0)


@dataclass(frozen=True)
class AtMost(Constraint):
    """Codes between 0 and a bound: a constraint only plain torch knows."""

    bound: Tensor
    kind = "at_most"

    def project(self, codes: Tensor) -> Tensor:
        return torch.minimum(codes.relu(), self.bound)

    def project_atom(self, values: Tensor, atom: int) -> Tensor:
        return torch.minimum(values.relu(), self.bound[atom])

    def movable(self, codes: Tensor) -> Tensor:
        return codes * (codes < self.bound)


def test_other_constraints_are_left_to_torch(kernel):
    problem = replace(make_problem(), constraint=AtMost(torch.full((9,), 0.3, dtype=torch.float64)))
    result = solve(problem)
    assert sweeps_for(problem) is torch_sweeps
    assert result.codes.max() == 0.3
    assert problem.residual(result.codes).max() < 1e-9


# The border to C++


def replaced(problem: Problem, name: str, tensor: Tensor) -> Problem:
    """The problem with another tensor in the named place."""
    match name:
        case "mask":
            return replace(problem, constraint=OnSupport(tensor))
        case "scale" | "offset":
            return replace(problem, affine=problem.affine._replace(**{name: tensor}))
        case _:
            return replace(problem, **{name: tensor})


def tensor_of(problem: Problem, name: str) -> Tensor:
    places = {"mask": problem.constraint, "scale": problem.affine, "offset": problem.affine}
    return getattr(places.get(name, problem), name)


OTHERS = ["gram", "shift", "init", "mask", "scale", "offset"]


def compiled(problem: Problem) -> Result:
    return cpu.compiled_sweeps(available_kernels()[-1])(problem, TIGHT)


@needs_kernel
@pytest.mark.parametrize("name", OTHERS)
def test_border_refuses_other_dtype(name):
    problem = with_everything(make_problem())
    problem = replaced(problem, name, tensor_of(problem, name).float())
    with pytest.raises(TypeError, match=f"{name} must be float64 like rhs; got float32"):
        compiled(problem)


@needs_kernel
@pytest.mark.parametrize("name", OTHERS)
def test_border_refuses_other_device(name):
    problem = with_everything(make_problem())
    problem = replaced(problem, name, tensor_of(problem, name).to("meta"))
    with pytest.raises(ValueError, match=f"{name} must be on the CPU like rhs; got a tensor on meta"):
        compiled(problem)


@needs_kernel
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: t[..., :1], lambda t: t[None]])
def test_border_refuses_other_shape(name, change):
    problem = with_everything(make_problem())
    right = tensor_of(problem, name)
    with pytest.raises(ValueError, match=re.escape(f"{name} must have the shape {tuple(right.shape)}")):
        compiled(replaced(problem, name, change(right)))


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.complex64])
def test_border_refuses_other_numbers(dtype):
    with pytest.raises(TypeError, match="rhs must be float32 or float64; got"):
        compiled(Problem(torch.ones(2, 3, dtype=dtype), torch.eye(3, dtype=dtype)))


@needs_kernel
@pytest.mark.parametrize("rhs", [torch.ones(3), torch.ones(1, 2, 3), torch.ones(2, 3, device="meta")])
def test_border_refuses_what_is_no_matrix_on_the_cpu(rhs):
    with pytest.raises(ValueError, match="rhs must be a matrix on the CPU; got the shape"):
        compiled(Problem(rhs, torch.eye(3)))


def strided(tensor: Tensor) -> Tensor:
    """The same values, every other place in memory."""
    return tensor.new_empty(*tensor.shape, 2)[..., 0].copy_(tensor)


def test_tensors_need_not_be_contiguous(kernel):
    problem = with_everything(make_problem())
    expected = solve(problem).codes
    for name in ["rhs", *OTHERS]:
        problem = replaced(problem, name, strided(tensor_of(problem, name)))
    assert not problem.rhs.is_contiguous()
    assert_close(solve(problem).codes, expected, atol=1e-12, rtol=0)


def test_tensors_may_require_grad(kernel):
    problem = with_everything(make_problem())
    expected = solve(problem).codes
    for name in ["rhs", *OTHERS]:
        problem = replaced(problem, name, tensor_of(problem, name).clone().requires_grad_())
    result = solve(problem)
    assert not result.codes.requires_grad
    assert_close(result.codes, expected)


@needs_kernel
def test_in_place_writes_over_contiguous_memory_only():
    problem = make_problem()
    expected = compiled(problem).codes
    scattered = replace(problem, rhs=strided(problem.rhs), in_place=True)
    before = scattered.rhs.clone()
    assert_close(compiled(scattered).codes, expected, rtol=0, atol=0)
    assert_close(scattered.rhs, before, rtol=0, atol=0)
    together = replace(problem, rhs=problem.rhs.clone(), in_place=True)
    assert compiled(together).codes is together.rhs
    assert_close(together.rhs, expected, rtol=0, atol=0)


def bare_call(**fields: int) -> int:
    """Status of a call straight to the library, without any tensor."""
    return cpu._loaded().library.scn_solve(cpu._Call(interface_version=cpu._INTERFACE_VERSION, n_grams=1, **fields))


@needs_kernel
def test_empty_batch_allocates_nothing():
    assert bare_call(n_signals=0, n_atoms=2**28) == 0
    assert bare_call(n_signals=1, n_atoms=2**28) == 1  # packing its Gram matrix would take 2^58 bytes


@needs_kernel
@pytest.mark.parametrize("fields", [{"constraint": 99}, {"constraint": 1}, {"number": 99}, {"isa": 99}, {"isa": -1}])
def test_library_refuses_what_it_does_not_know(fields):
    assert bare_call(n_signals=1, n_atoms=1, **fields) == 2


@needs_kernel
def test_library_refuses_another_version():
    assert cpu._loaded().library.scn_solve(cpu._Call(interface_version=cpu._INTERFACE_VERSION + 1)) == 2


@pytest.mark.parametrize(("status", "error"), [(1, MemoryError), (2, RuntimeError), (3, RuntimeError)])
def test_status_becomes_an_exception(status, error):
    with pytest.raises(error, match="the CPU kernel did not solve 70 problems of 9 atoms: "):
        cpu._solve(lambda call: status, 0, make_problem(), TIGHT)


# The 4 MiB of address space it leaves are enough for the kernel, but not for the stack of a thread.
WITHOUT_THREADS = """
import resource, threading, torch
from torchscn.kernels import SweepRule, cpu, sweeps_for
from torchscn.problem import Problem

torch.set_num_threads(8)
problem = Problem(torch.randn(2000, 16), torch.eye(16))
kernel = sweeps_for(problem)
cpu._loaded().library.scn_use_openmp(None)  # threads of our own
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**22, taken + 2**22))
try:
    threading.Thread(target=print).start()
except RuntimeError:
    print("no threads")
result = kernel(problem, SweepRule(tol=1e-6, max_iter=10, by_block=False))
print("solved", bool(result.converged.all()), bool((result.codes == problem.rhs.relu()).all()))
"""


@needs_kernel
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space through /proc")
def test_without_threads_the_caller_does_the_work():
    """The exception of a thread that could not be started used to end the process."""
    result = subprocess.run([sys.executable, "-c", WITHOUT_THREADS], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[:2] == ["no threads", "solved True True"]


@needs_kernel
def test_own_threads_agree_with_the_pool():
    problem = make_problem(n_signals=1000)
    expected = compiled(problem).codes
    library = cpu._loaded().library
    library.scn_use_openmp(None)
    try:
        assert_close(compiled(problem).codes, expected, rtol=0, atol=0)
    finally:
        library.scn_use_openmp(cpu._torch_openmp())


# Libraries that are absent or of no use


@pytest.fixture
def library_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Puts another file in the place of the compiled kernel, as if this process had just started."""

    def forget() -> None:
        for cached in (cpu._loaded, cpu.cpu_kernel, cpu.compiled_sweeps):
            cached.cache_clear()

    def put(path: Path) -> None:
        monkeypatch.setattr(cpu, "_PATH", path)
        forget()

    monkeypatch.delenv("TORCHSCN_KERNEL", raising=False)
    yield put
    monkeypatch.undo()
    forget()


def build_library(folder: Path, source: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / "library.c").write_text(source)
    run(compiler, "-shared", "-fPIC", str(folder / "library.c"), "-o", str(folder / "library.so"))
    return folder / "library.so"


def run(*command: str, **options) -> str:
    result = subprocess.run(command, capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def assert_falls_back_with_one_warning(path: Path, reason: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert available_kernels() == ("torch",)
        assert active_kernel() == "torch"
        assert sweeps_for(make_problem()) is torch_sweeps
    (warning,) = [str(item.message) for item in caught if item.category is RuntimeWarning]
    assert str(path) in warning
    assert reason in warning
    assert "pip install --force-reinstall torchscn" in warning
    assert "pip install -e ." in warning


def test_library_of_another_version(tmp_path, library_at, monkeypatch):
    path = build_library(tmp_path, "long long scn_interface_version(void) { return 999; }")
    library_at(path)
    assert_falls_back_with_one_warning(path, "its interface has version 999")
    monkeypatch.setenv("TORCHSCN_KERNEL", "generic")
    with pytest.raises(RuntimeError, match=r"is not usable \(its interface has version 999"):
        active_kernel()


def test_library_that_says_no_version(tmp_path, library_at):
    path = build_library(tmp_path, "int scn_best_isa(void) { return 0; }")
    library_at(path)
    assert_falls_back_with_one_warning(path, "does not say which interface it has")


def test_library_that_is_no_library(tmp_path, library_at):
    path = tmp_path / "garbage.so"
    path.write_bytes(b"no library")
    library_at(path)
    assert_falls_back_with_one_warning(path, "too short")


def test_no_library_is_no_reason_to_warn(tmp_path, library_at, monkeypatch):
    library_at(tmp_path / "absent.so")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert available_kernels() == ("torch",)
    monkeypatch.setenv("TORCHSCN_KERNEL", "avx2")
    with pytest.raises(RuntimeError, match=r"the install found no C\+\+ compiler\. Available: torch"):
        active_kernel()


def test_processor_that_lacks_a_kernel(tmp_path, library_at, monkeypatch):
    source = f"""
        long long scn_interface_version(void) {{ return {cpu._INTERFACE_VERSION}; }}
        int scn_best_isa(void) {{ return 1; }}
        void scn_use_openmp(void* parallel) {{ (void)parallel; }}
        int scn_solve(void* call) {{ (void)call; return 3; }}
    """
    library_at(build_library(tmp_path, source))
    assert available_kernels() == ("torch", "generic", "avx2")
    monkeypatch.setenv("TORCHSCN_KERNEL", "avx512")
    with pytest.raises(RuntimeError, match=r"the processor does not run it\. Available: torch, generic, avx2"):
        active_kernel()


def test_unknown_name_is_an_error(monkeypatch):
    monkeypatch.setenv("TORCHSCN_KERNEL", "nonsense")
    with pytest.raises(ValueError, match=r"TORCHSCN_KERNEL='nonsense' is not a kernel\. Use auto, torch, generic"):
        active_kernel()


# Compilers


@pytest.fixture(params=["g++", "clang++"])
def compiler(request: pytest.FixtureRequest) -> str:
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param}")
    return request.param


def test_call_is_mirrored_field_by_field(compiler, tmp_path):
    names = [name for name, _ in cpu._Call._fields_]
    offsets = ", ".join(f"offsetof(ScnCall, {name})" for name in names)
    source = f"""
        #include <cstddef>
        #include <cstdio>
        #include <initializer_list>
        #include "call.h"
        int main() {{
            for (std::size_t place : {{{offsets}, sizeof(ScnCall)}}) std::printf("%zu ", place);
            std::printf("%d", static_cast<int>(kInterfaceVersion));
        }}
    """
    (tmp_path / "layout.cpp").write_text(source)
    program = str(tmp_path / "layout")
    run(compiler, "-std=c++17", f"-I{CPU_SOURCES}", str(tmp_path / "layout.cpp"), "-o", program)
    mirrored = [getattr(cpu._Call, name).offset for name in names]
    expected = [*mirrored, ctypes.sizeof(cpu._Call), cpu._INTERFACE_VERSION]
    assert [int(word) for word in run(program).split()] == expected


def test_other_compilers_are_refused_in_one_sentence(compiler):
    hidden = [compiler, "-U__GNUC__", "-U__clang__", "-E", str(CPU_SOURCES / "platform.h")]
    result = subprocess.run(hidden, capture_output=True, text=True)
    assert result.returncode != 0
    assert "needs GCC or Clang" in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86-64")
def test_compiles_without_warnings(compiler, tmp_path):
    common = [compiler, "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno"]
    common += ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror", "-c", "-o", str(tmp_path / "out.o")]
    for isa, width, vectors, flags in BUILDS:
        macros = [f"-DSCN_ISA={isa}", f"-DSCN_BYTES={width}", f"-DSCN_VECTORS={vectors}"]
        run(*common, *flags, *macros, str(CPU_SOURCES / "block.cpp"))
    run(*common, str(CPU_SOURCES / "library.cpp"))
    run(*common, "-DSCN_X86=1", str(CPU_SOURCES / "library.cpp"))
    run(*common, f"-I{CPU_SOURCES}", str(CHECK_PROGRAM))


@pytest.mark.slow
def test_check_program_passes(compiler, tmp_path):
    program = str(tmp_path / "kernel_check")
    macros = ["-DSCN_ISA=generic", "-DSCN_BYTES=16", "-DSCN_VECTORS=2"]
    sources = [str(CPU_SOURCES / "library.cpp"), str(CPU_SOURCES / "block.cpp"), str(CHECK_PROGRAM)]
    run(compiler, "-std=c++17", "-O2", "-pthread", f"-I{CPU_SOURCES}", *macros, *sources, "-o", program)
    assert run(program) == "ok\n"


@pytest.mark.parametrize("environment", [{}, {"CC": "/nonexistent/cc", "CXX": "/nonexistent/c++"}])
def test_failed_build_says_what_stands_in(environment, tmp_path):
    shutil.copy(ROOT / "setup.py", tmp_path)
    sources = tmp_path / "src" / "torchscn" / "kernels" / "cpu"
    shutil.copytree(CPU_SOURCES, sources)
    (sources / "platform.h").write_text("#error")
    out = run(sys.executable, "setup.py", "build_ext", cwd=tmp_path, env=os.environ | environment)
    assert out.count("the CPU kernel could not be built; its plain-torch fallback will be used.") == 1
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize("n_atoms", [1, 5, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_kernels_relax_like_plain_torch(n_atoms, dtype):
    """One sweep from zero shows the length of the steps."""
    dictionary = random_dictionary(n_atoms, 20).to(dtype)
    dictionary[n_atoms // 2] *= 0 if n_atoms > 1 else 1
    problem = Problem(torch.randn(9, 20, dtype=dtype) @ dictionary.T, dictionary @ dictionary.T)
    rule = SweepRule(tol=0, max_iter=1, by_block=False)
    expected = torch_sweeps(problem, rule).codes
    for kernel in available_kernels()[1:]:
        assert_close(cpu.compiled_sweeps(kernel)(problem, rule).codes, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")
def test_tensors_without_memory_are_refused():
    """A null pointer would end the process."""
    with FakeTensorMode():
        problem = Problem(torch.ones(3, 4), torch.eye(4))
        for kernel in available_kernels()[1:]:
            with pytest.raises(ValueError, match="tensors with memory"):
                cpu.compiled_sweeps(kernel)(problem, TIGHT)
