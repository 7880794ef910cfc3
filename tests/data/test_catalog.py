import ast
from pathlib import Path

import pytest

import torchscn.data
from torchscn.data import DATASETS, DataError, list_datasets, load
from torchscn.data import status as dataset_status


def statuses(*args, **kwargs):
    return {entry.name: entry for entry in dataset_status(*args, **kwargs)}


def test_an_unknown_name_suggests_a_near_one():
    with pytest.raises(DataError, match=r"'cifar-10' is not known; choose from 'mnist'.*Did you mean 'cifar10'\?"):
        load("cifar-10")


def test_an_unknown_split_suggests_a_near_one():
    with pytest.raises(DataError, match=r"split 'tests' is not known.*Did you mean 'test'\?"):
        load("digits", "tests")


def test_load_without_a_folder_says_how_to_set_one():
    with pytest.raises(DataError, match="TORCHSCN_DATA"):
        load("mnist")


def test_status_of_an_empty_folder(tmp_path):
    found = statuses(tmp_path)
    assert list(found) == list_datasets()
    assert not found["cifar10"].found
    assert found["cifar10"].path == tmp_path / "cifar10"
    assert len(found["cifar10"].missing) == 6
    assert "scn data get cifar10" in found["cifar10"].problem
    assert found["cifar10"].total_bytes == 6 * 30_730_000
    assert found["stl10"].source.startswith("http://")


def test_status_without_a_folder_is_a_problem_not_an_error():
    entry = statuses()["mnist"]
    assert (entry.found, entry.path) == (False, None)
    assert "TORCHSCN_DATA" in entry.problem


def test_the_catalog_is_the_list_of_data_sets():
    assert [dataset.name for dataset in DATASETS] == list_datasets()
    titles = ["MNIST", "Fashion-MNIST", "CIFAR-10", "CIFAR-100", "STL-10", "digits"]
    assert [dataset.title for dataset in DATASETS] == titles


def test_data_stands_alone():
    """Nothing in torchscn.data imports the rest of torchscn."""
    for path in Path(torchscn.data.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            ours = [module for module in modules if module.split(".")[0] == "torchscn"]
            assert all(f"{module}.".startswith("torchscn.data.") for module in ours), path.name


def test_real_files_are_ready(real_data):
    found = statuses(real_data, verify=True)
    assert all(found[name].found for name in ("mnist", "cifar10", "cifar100"))
