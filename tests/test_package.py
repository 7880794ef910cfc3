"""The package as others meet it: import direction, command line, wheel, builds without and across compilers."""

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "torchscn"
# A module may import those before it; "data" stands alone.
LAYERS = [
    "data",
    "objective",
    "kernels",
    "solvers",
    "implicit",
    "checks",
    "functional",
    "layers",
    "fusion",
    "weights",
    "network",
    "models",
    "training",
    "results",
    "bench",
    "cli",
]

SMOKE = """
import torch, torchscn
from torchscn.kernels import active_kernel
layer = torchscn.SparseCoding2d(3, 8)
x = torch.randn(2, 3, 8, 8, requires_grad=True)
layer(x).sum().backward()
assert torchscn.solve(torch.randn(5, 6), torch.randn(4, 6), 0.1, 0.1).converged.all()
print(torchscn.__file__, active_kernel())
"""


def own_imports(path: Path) -> set[str]:
    """First-level torchscn modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = [f"torchscn.{alias.name}" for alias in node.names]
            names = whole if node.module == "torchscn" else [node.module]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name and name.startswith("torchscn.")}
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_run_one_way(layer):
    files = (SOURCE / layer).rglob("*.py") if (SOURCE / layer).is_dir() else [SOURCE / f"{layer}.py"]
    allowed = set(LAYERS[: LAYERS.index(layer) + 1])
    imported = set().union(*(own_imports(path) for path in files)) & set(LAYERS)
    assert imported <= allowed


def test_data_stands_alone():
    assert set().union(*(own_imports(path) for path in (SOURCE / "data").rglob("*.py"))) <= {"data"}


def run(*command: str, **options) -> str:
    result = subprocess.run(command, capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_info_names_the_kernel(monkeypatch):
    environment = os.environ | {"TORCHSCN_KERNEL": "torch"}
    out = run(sys.executable, "-m", "torchscn", "info", env=environment)
    assert "kernel             torch" in out


def test_mistakes_end_in_one_sentence():
    environment = os.environ | {"TORCHSCN_KERNEL": "nonsense"}
    result = subprocess.run([sys.executable, "-m", "torchscn", "info"], env=environment, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("scn: TORCHSCN_KERNEL='nonsense' is not a kernel")


def build_and_smoke(folder: Path, environment: dict[str, str]) -> tuple[list[str], str]:
    """Build a wheel of a copy of the sources, install it elsewhere and use it; returns its files and the output."""
    checkout, target, elsewhere = folder / "checkout", folder / "target", folder / "elsewhere"
    shutil.copytree(ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, checkout)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(checkout)]
    run(*build, env=environment)
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel))
    elsewhere.mkdir()
    out = run(sys.executable, "-c", SMOKE, cwd=elsewhere, env=os.environ | {"PYTHONPATH": str(target)})
    assert str(target) in out
    return zipfile.ZipFile(wheel).namelist(), out


@pytest.mark.slow
def test_wheel_works_outside_the_checkout(tmp_path):
    files, out = build_and_smoke(tmp_path, dict(os.environ))
    assert "torchscn/py.typed" in files
    package = SOURCE.glob("recipes/*.toml"), SOURCE.glob("pretrained/*")
    assert {f"torchscn/{path.parent.name}/{path.name}" for paths in package for path in paths} <= set(files)
    assert not out.strip().endswith(" torch") or shutil.which("c++") is None


@pytest.mark.slow
def test_install_without_a_compiler_falls_back_to_torch(tmp_path):
    files, out = build_and_smoke(tmp_path, os.environ | {"CC": "/nonexistent/cc", "CXX": "/nonexistent/c++"})
    assert not any(name.endswith(".so") for name in files)
    assert out.strip().endswith(" torch")


@pytest.mark.slow
def test_kernel_compiles_and_runs_for_aarch64(tmp_path):
    """Cross-compiled with its own small check program, and run where an emulator is at hand."""
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None:
        pytest.skip("no aarch64 cross compiler (Debian: g++-aarch64-linux-gnu)")
    program = tmp_path / "kernel_check"
    cpu = SOURCE / "kernels" / "cpu"
    sources = [str(cpu / "library.cpp"), str(cpu / "block.cpp"), str(ROOT / "tests" / "kernel_check.cpp")]
    macros = ["-DSCN_ISA=generic", "-DSCN_BYTES=16", "-DSCN_VECTORS=2"]
    run(compiler, "-std=c++17", "-O2", "-static", "-pthread", *macros, *sources, "-o", str(program))
    if emulator is not None:
        assert "ok" in run(emulator, str(program))
