"""What must be decided before any test is collected."""

import importlib.util
import os

# GPU kernels run on the CPU in Triton's interpreter, if somebody asks for them (TORCHSCN_KERNEL=triton). Triton reads
# this when it is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Without Triton, modules of kernels cannot be imported in search of examples.
collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["src/torchscn/kernels/gpu/[!_]*.py"]
