"""What must be decided before any test is collected."""

import importlib.util
import os

# GPU kernels run on the CPU in Triton's interpreter, if somebody asks for them (TORCHSCN_KERNEL=triton). Triton reads
# this when it is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Without Triton, what imports it cannot be searched for examples.
_NEED_TRITON = ["src/torchscn/kernels/gpu/[!_]*.py", "tests/gpu/fake_cuda.py"]
collect_ignore_glob = [] if importlib.util.find_spec("triton") else _NEED_TRITON
