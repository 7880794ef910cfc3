from pathlib import Path

import pytest
from gpu_results import made_up_result

from tools.results import write_gpu_page
from tools.results.gpu import make_gpu_tables
from tools.results.report import fill_page
from torchscn.bench.gpu import load_results, save_result

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "gpu.md"
    path.write_text("# Page\n\n<!-- begin gpu -->\nold\n<!-- end gpu -->\n\nend\n")
    return path


def test_without_files_the_page_says_so(page, tmp_path):
    assert write_gpu_page(tmp_path / "none", page) == [page]
    text = page.read_text()
    assert "No measurement has arrived yet" in text
    assert "old" not in text
    assert text.endswith("\nend\n")


def test_files_become_tables(page, tmp_path):
    other = made_up_result(date="2002-02-03 04:05")
    other["checks"].append({"name": "bad", "kernel": "triton", "passed": False, "problem": "<b>"})
    other["steps"][2]["problem"] = "RuntimeError: <b> | no"
    for result in (made_up_result(), other):
        save_result(tmp_path / "sent", result)
    write_gpu_page(tmp_path / "sent", page)
    lines = page.read_text().splitlines()
    assert "| Imaginary 9000 | 9.9 | 5 | 1 | 2+cu1 | 3 | 0 (abc) | 2001-02-03 04:05 | 1 of 1 (triton) |" in lines
    assert "| Imaginary 9000 | 9.9 | 5 | 1 | 2+cu1 | 3 | 0 (abc) | 2002-02-03 04:05 | 1 of 2 (triton) |" in lines
    ours = "| Imaginary 9000 | scn1 | training | float32 | triton | 15.00 ms | 8,533 | 1.50x | 120 MiB |"
    assert lines.count(ours) == 2
    assert "| Imaginary 9000 | scn1 | training | float32 | torch | out of memory | - | - | - |" in lines
    assert "| Imaginary 9000 | scn1 | training | float32 | torch | failed | - | - | - |" in lines
    assert "<b>" not in page.read_text()


def test_a_malformed_file_is_named_and_the_page_stays(page, tmp_path):
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "gpu-x.json").write_text("{}")
    before = page.read_text()
    with pytest.raises(ValueError, match=r"gpu-x\.json is not what it should be: 'format' is missing"):
        write_gpu_page(tmp_path / "sent", page)
    assert page.read_text() == before


def test_the_page_shows_the_files_of_the_repository():
    text = (ROOT / "docs" / "gpu.md").read_text()
    assert "<!-- begin gpu -->" in text
    assert fill_page(text, make_gpu_tables(load_results(ROOT / "benchmarks" / "results" / "gpu"))) == text
