"""The examples run, and what they print is right."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *arguments: str | Path) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def test_unmixing_agrees_with_scipy(tmp_path):
    out = run("unmixing.py", "--output", tmp_path)
    assert "synthetic image: 10,000 pixels, 4 materials, 150 bands" in out
    difference = float(out.split("NNLS: largest difference from scipy ")[1].split()[0])
    assert difference < 1e-12
    assert (tmp_path / "unmixing.png").stat().st_size > 10_000


@pytest.mark.skipif(importlib.util.find_spec("skimage") is None, reason="scikit-image is not installed")
def test_stains_agree_with_scipy(tmp_path):
    out = run("stains.py", "--output", tmp_path)
    assert float(out.split("largest difference from scipy ")[1].split()[0]) < 1e-12
    assert (tmp_path / "stains.png").stat().st_size > 10_000


def test_unmixing_refuses_another_file(tmp_path):
    import scipy.io

    scipy.io.savemat(tmp_path / "other.mat", {"X": [1.0]})
    with pytest.raises(subprocess.CalledProcessError) as failure:
        run("unmixing.py", tmp_path / "other.mat")
    assert "neither the fields of samson.mat" in failure.value.stderr
