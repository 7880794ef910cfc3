"""The C++ kernel under the sanitizers, on odd shapes and both number types."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tools.fuzz.outcome import Outcome

__all__ = ["run"]

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "torchscn" / "kernels" / "cpu"
BUILDS = {
    "generic": ["-DSCN_BYTES=16", "-DSCN_VECTORS=2"],
    "avx2": ["-DSCN_BYTES=32", "-DSCN_VECTORS=2", "-mavx2", "-mfma"],
    "avx512": ["-DSCN_BYTES=64", "-DSCN_VECTORS=4", "-mavx512f", "-mavx512dq"],
}
SANITIZERS = ("address,undefined", "thread")


def run(report: Callable[[str], None]) -> list[Outcome]:
    """Build the check program of the tests for every instruction set this processor has, and run it."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return [Outcome("kernel under sanitizers", 0, 0, "no C++ compiler here")]
    problems = []
    builds = [(isa, sanitizer) for isa in BUILDS if _runs_here(isa) for sanitizer in SANITIZERS]
    for isa, sanitizer in builds:
        report(f"kernel for {isa} under {sanitizer} sanitizer")
        if problem := _check(compiler, isa, sanitizer):
            problems.append(f"{isa} under {sanitizer}: {problem}")
    names = ", ".join(sorted({isa for isa, _ in builds}))
    note = f"address, undefined and thread sanitizers; {names}; 240 shapes each"
    return [Outcome("kernel under sanitizers", len(builds), len(problems), note, tuple(problems))]


def _runs_here(isa: str) -> bool:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return isa == "generic" or (f" {isa}f " if isa == "avx512" else f" {isa} ") in flags


def _check(compiler: str, isa: str, sanitizer: str) -> str:
    """What went wrong, if anything."""
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "kernel_check")
        # The check program asks for the plainest kernel, so every build takes its name.
        flags = ["-std=c++17", "-O1", "-g", "-pthread", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
        sources = [str(SOURCES / "library.cpp"), str(SOURCES / "block.cpp"), str(ROOT / "tests" / "kernel_check.cpp")]
        build = [compiler, *flags, f"-I{SOURCES}", "-DSCN_ISA=generic", *BUILDS[isa], *sources, "-o", program]
        for command in (build, [program]):
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                return (result.stdout + result.stderr)[-1000:]
    return ""
