"""Build the CPU kernel: one source compiled once per instruction set, linked into one plain shared library.

Everything else about the package is in pyproject.toml. The library has a C interface (no Python or torch headers),
so one wheel serves every Python version; where no compiler is found the install continues without it.
"""

import os
import platform

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

SOURCES = "src/torchscn/kernels/cpu"
COMMON_FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno"]
# name: (register width in bytes, registers per row of a block, compiler flags)
GENERIC = {"generic": (16, 2, [])}
X86 = {
    "avx2": (32, 2, ["-mavx2", "-mfma"]),
    "avx512": (64, 4, ["-mavx512f", "-mavx512dq", "-mprefer-vector-width=512"]),
}


def target_machine() -> str:
    """The processor compiled for; TORCHSCN_BUILD_MACHINE names it when cross-compiling."""
    return os.environ.get("TORCHSCN_BUILD_MACHINE") or platform.machine()


class BuildKernel(build_ext):
    """Compiles block.cpp for every instruction set of the target and links the objects with library.cpp."""

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext: Extension) -> None:
        try:
            self.build_kernel(ext)
        except (BaseError, CCompilerError):
            print("torchscn: the CPU kernel could not be built; its plain-torch fallback will be used.", flush=True)
            raise  # the extension is optional: setuptools goes on without it

    def build_kernel(self, ext: Extension) -> None:
        is_x86 = target_machine().lower() in ("x86_64", "amd64")
        for isa, (width, vectors, flags) in (GENERIC | (X86 if is_x86 else {})).items():
            ext.extra_objects += self.compiler.compile(
                [f"{SOURCES}/block.cpp"],
                output_dir=os.path.join(self.build_temp, isa),
                macros=[("SCN_ISA", isa), ("SCN_BYTES", str(width)), ("SCN_VECTORS", str(vectors))],
                extra_postargs=COMMON_FLAGS + flags,
                depends=ext.depends,
            )
        ext.define_macros = [("SCN_X86", "1")] if is_x86 else []
        super().build_extension(ext)


class PlatformWheel(bdist_wheel):
    """Tags the wheel for any Python 3 on this platform: the kernel depends on no Python version."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "torchscn.kernels._cpu",
            sources=[f"{SOURCES}/library.cpp"],
            depends=[
                f"{SOURCES}/{name}"
                for name in (
                    "active_set.h",
                    "block.cpp",
                    "call.h",
                    "conditioning.h",
                    "face.h",
                    "lanes.h",
                    "platform.h",
                    "problem.h",
                )
            ],
            extra_compile_args=COMMON_FLAGS,
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": PlatformWheel},
)
