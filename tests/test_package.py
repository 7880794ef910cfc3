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
    "lazy",
    "atomic",
    "json_file",
    "data",
    "checks",
    "options",
    "tensors",
    "constraints",
    "problem",
    "kernels",
    "environment",
    "solvers",
    "gradients",
    "functional",
    "lawson_hanson",
    "least_squares",
    "patches",
    "layers",
    "certificates",
    "fusion",
    "shortcuts",
    "weights",
    "network",
    "models",
    "training",
    "inspect",
    "explore",
    "bench",
    "cli",
]
# What the maintainers promised themselves about the size of signatures.
MOST_WITH_TOL_AND_MAX_ITER = 11
MOST_WITH_MANY_ARGUMENTS = 7
MANY_ARGUMENTS = 8

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


def test_every_module_has_its_place():
    modules = {path.stem for path in SOURCE.glob("*.py")} | {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert modules - {"__init__", "__main__"} == set(LAYERS)


def listed_names(path: Path) -> set[str]:
    """What ``__all__`` of a module lists, or, where it is computed, its stub imports."""
    stub = path.with_suffix(".pyi")
    if stub.exists():
        return {alias.name for node in ast.parse(stub.read_text()).body for alias in getattr(node, "names", ())}
    assigned = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
    return set().union(*(ast.literal_eval(node.value) for node in assigned if node.targets[0].id == "__all__"))


def test_what_other_modules_import_is_listed():
    unlisted = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("torchscn."):
                base = SOURCE.parent / node.module.replace(".", "/")
                package = (base / "__init__.py").exists()
                home = base / "__init__.py" if package else base.with_suffix(".py")
                submodules = {child.stem for child in base.iterdir()} if package else set()
                names = {alias.name for alias in node.names} - submodules - listed_names(home)
                unlisted += [f"{path.relative_to(SOURCE)}: {node.module}.{name}" for name in sorted(names)]
    assert not unlisted


def argument_names(node: ast.FunctionDef) -> set[str]:
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return {argument.arg for argument in every if argument is not None} - {"self", "cls", "ctx"}


def test_options_are_not_carried_by_hand():
    found = [
        (f"{path.stem}.{node.name}", argument_names(node))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        # Kernels that Triton compiles take no objects.
        if isinstance(node, ast.FunctionDef) and "triton.jit" not in map(ast.unparse, node.decorator_list)
    ]
    assert sum({"tol", "max_iter"} <= names for _, names in found) <= MOST_WITH_TOL_AND_MAX_ITER
    many = [name for name, names in found if len(names) >= MANY_ARGUMENTS and not name.endswith("__init__")]
    # The arguments of a command are its flags.
    meant = ("models.create_model", "evaluate.evaluate")
    assert len([name for name in many if name not in meant]) <= MOST_WITH_MANY_ARGUMENTS, many


def test_modules_are_there_after_import():
    run(sys.executable, "-c", "import torchscn; torchscn.training.load_recipe; torchscn.data.load; torchscn.kernels")


def test_public_names_are_there():
    """The names that programs outside rely on, and no module that would hide one of them."""
    import torchscn

    assert set(dir(torchscn)) >= set(torchscn.__all__)
    assert all(getattr(torchscn, name) is not None for name in torchscn.__all__)
    assert not set(torchscn.__all__) & {path.stem for path in SOURCE.iterdir()}
    with pytest.raises(AttributeError, match="no attribute 'sparse_coder'"):
        torchscn.sparse_coder  # noqa: B018


def test_the_first_call_imports_no_compiler():
    code = (
        "import sys, torch, torchscn\n"
        "x = torch.randn(8, 6, requires_grad=True)\n"
        "torchscn.sparse_code(x, torch.randn(4, 6), 0.1).sum().backward()\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    assert run(sys.executable, "-c", code).strip() == "False"


def test_data_stands_alone():
    assert set().union(*(own_imports(path) for path in (SOURCE / "data").rglob("*.py"))) <= {"data"}


def run(*command: str, **options) -> str:
    result = subprocess.run(command, capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


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
    patterns = ("recipes/*.toml", "pretrained/*", "**/*.pyi", "**/*.html")
    parts = [path for pattern in patterns for path in SOURCE.glob(pattern)]
    assert {str(path.relative_to(SOURCE.parent)) for path in parts} <= set(files)
    assert not [name for name in files if name.startswith(("tools", "tests", "benchmarks"))]
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
    run(compiler, "-std=c++17", "-O2", "-static", "-pthread", f"-I{cpu}", *macros, *sources, "-o", str(program))
    if emulator is not None:
        assert "ok" in run(emulator, str(program))
