"""Compile the GPU kernels ahead of time, without a GPU, and say what they need: registers, spills, shared memory.

``python -m tools.gpu_resources`` compiles all of them for all devices (some ten minutes) and saves what it found, from
which ``make results`` fills docs/gpu.md; with ``--devices 80`` it compiles for one device and prints JSON.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["DEVICES", "RECORD", "Needs", "compile_kernels", "main", "read_record"]

KERNELS = ("scale_gram", "set_limits", "small", "blocks", "finish")
DEVICES = {80: "A100", 86: "RTX 30", 89: "RTX 40, L4", 90: "H100", 100: "B200", 120: "RTX 50"}
"""Compute capability and devices that have it."""
SHARED_KILOBYTES = 99
"""Memory that a program can have on every one of these devices."""


RECORD = Path(__file__).parent.parent / "benchmarks" / "gpu_resources.json"

_CONSTRAINTS = ("non_negative", "on_support", "bounds")
_FLOATS = ("tol", "affordable", "ridge", "least_pivot", "promise", "rounding", "most_cancellation")
_MULTIPLES_OF_16 = (
    "n_atoms",
    "width",
    "bound_stride",
    "padded_rows",
)  # the launcher sees to that; Triton compiles for it
_TYPES = {"status_ptr": "*i8", "sweeps_ptr": "*i32", "rounds_ptr": "*i32", "info_ptr": "*i32"}


@dataclass(frozen=True)
class Needs:
    """What a compiled kernel needs of a device."""

    device: int
    kernel: str
    constraint: str
    shape: str
    registers: int
    spilled_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Variant:
    """A kernel with all that is fixed when it is compiled."""

    kernel: Any
    name: str
    constraint: int | None
    shape: str
    constants: dict[str, Any]

    def compiled_for(self, device: int) -> Needs:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        options = {name: self.constants[name] for name in ("num_warps", "num_stages")}
        constants = {name: value for name, value in self.constants.items() if name not in options}
        names = self.kernel.arg_names
        types = {name: "constexpr" if name in constants else _type_of(name) for name in names}
        aligned = [name for name in names if types[name].startswith("*") or name in _MULTIPLES_OF_16]
        source = ASTSource(
            fn=self.kernel,
            signature=types,
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
        )
        compiled = triton.compile(source, target=GPUTarget("cuda", device, 32), options=options)
        registers, spilled = _register_use(compiled.asm["cubin"])
        constraint = "any" if self.constraint is None else _CONSTRAINTS[self.constraint]
        return Needs(device, self.name, constraint, self.shape, registers, spilled, compiled.metadata.shared)


def _type_of(name: str) -> str:
    if name in _TYPES:
        return _TYPES[name]
    return "*fp32" if name.endswith("_ptr") else "fp32" if name in _FLOATS else "i32"


def _register_use(program: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of the stack it keeps what does not fit into them on."""
    import triton

    reader = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(program)
        file.flush()
        said = subprocess.run([reader, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


def _variants() -> Iterator[Variant]:
    """Every kernel as layers launch it, with each constraint and tile."""
    from torchscn.kernels.gpu.blocks import sweep_blocks
    from torchscn.kernels.gpu.finish import finish_rows
    from torchscn.kernels.gpu.gram import scale_gram, set_limits
    from torchscn.kernels.gpu.launch import BLOCK_OPTIONS, FINISH_OPTIONS, SMALL_OPTIONS, TILES
    from torchscn.kernels.gpu.prepare import GRAM_OPTIONS
    from torchscn.kernels.gpu.small import sweep_small

    for name, kernel in (("scale_gram", scale_gram), ("set_limits", set_limits)):
        for size in (16, 512):
            options = GRAM_OPTIONS if name == "scale_gram" else {"num_warps": 4, "num_stages": 3}
            yield Variant(kernel, name, None, f"up to {size} atoms, 4 warps", options | {"N": size})
    stopping = {"BY_BLOCK": True, "STOPS": True, "FINISHES": True}
    for constraint in range(3):
        common = {"CONSTRAINT": constraint, "HAS_SHIFT": constraint != 1, "HAS_AFFINE": False}
        for tile in TILES.values():
            shape = f"{tile['ROWS']} signals, {tile['num_warps']} warps"
            constants = common | stopping | tile
            if constraint != 2:
                yield Variant(sweep_small, "small", constraint, shape, constants | SMALL_OPTIONS)
            yield Variant(sweep_blocks, "blocks", constraint, shape, constants | {"HAS_INIT": False} | BLOCK_OPTIONS)
        for size in (16, 64, 256, 512):
            shape = f"up to {size} atoms, {FINISH_OPTIONS['num_warps']} warps"
            yield Variant(finish_rows, "finish", constraint, shape, common | {"N": size} | FINISH_OPTIONS)


def compile_kernels(devices: list[int], kernels: list[str]) -> Iterator[Needs]:
    """Compile the kernels of these names for devices of these compute capabilities."""
    for variant in _variants():
        if variant.name in kernels:
            for device in devices:
                yield variant.compiled_for(device)


def read_record(path: Path = RECORD) -> list[Needs]:
    """What was found when all kernels were compiled last."""
    return [Needs(**needs) for needs in json.loads(path.read_text())]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile the GPU kernels ahead of time and say what they need.")
    parser.add_argument("--devices", type=int, nargs="+", choices=DEVICES, metavar="SM", help="print these alone")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=KERNELS)
    arguments = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)  # what is interpreted cannot be compiled
    if arguments.devices:
        print(_as_json(compile_kernels(arguments.devices, arguments.kernels)))
        return
    found = []
    for needs in compile_kernels(list(DEVICES), list(KERNELS)):
        print(needs, flush=True)
        found.append(needs)
    RECORD.write_text(_as_json(found) + "\n")


def _as_json(found: Iterable[Needs]) -> str:
    return json.dumps([asdict(needs) for needs in found], indent=1)


if __name__ == "__main__":
    main()
