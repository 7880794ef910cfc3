"""Fair timing: competitors take turns, several rounds in one process, and each one's best time counts."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping

__all__ = ["best_times", "peak_memory"]


def best_times(runs: Mapping[str, Callable[[], object]], rounds: int, slow: float = 3.0) -> dict[str, float]:
    """Best time in seconds of each run, interleaved; one that takes longer than ``slow`` seconds runs only once."""
    best: dict[str, float] = {}
    for i in range(rounds):
        for name, run in runs.items():
            if i and best[name] > slow:
                continue
            start = time.perf_counter()
            run()
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - start)
    return best


# ru_maxrss of a fresh process includes what its parent held when it forked; Linux also has the program's own figure.
_MEASURE = """
from pathlib import Path
status = Path("/proc/self/status")
if status.exists():
    print(next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")))
else:
    import resource, sys
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1))
"""


def peak_memory(code: str) -> float:
    """Peak resident memory in MiB of a fresh Python process that runs ``code``."""
    result = subprocess.run([sys.executable, "-c", code + _MEASURE], capture_output=True, text=True, check=True)
    return int(result.stdout.split()[-1]) / 1024
