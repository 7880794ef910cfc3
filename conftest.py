"""Which files pytest does not look into."""

import importlib.util

# The examples in the GPU kernels' documentation need Triton, as the kernels do.
collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["src/torchscn/kernels/gpu/[!_]*.py"]
