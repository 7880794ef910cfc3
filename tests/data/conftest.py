"""Small files in the official formats, and data sets that take them for the official ones."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torchscn.data import FileDataset, ImageSet
from torchscn.data.files import OfficialFile, md5_of_file


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch, request):
    """Only the tests on real files see the environment's data folder."""
    if "real_data" not in request.fixturenames:
        monkeypatch.delenv("TORCHSCN_DATA", raising=False)


@pytest.fixture
def real_data() -> Path:
    if not os.environ.get("TORCHSCN_DATA"):
        pytest.skip("TORCHSCN_DATA is not set: no real files to read")
    return Path(os.environ["TORCHSCN_DATA"])


@pytest.fixture
def declare_official():
    """A copy of a data set whose official sizes and md5s are those of the files in a folder."""

    def measured(file: OfficialFile, folder: Path) -> OfficialFile:
        form, path = file.locate(folder) or (file, None)
        return file if path is None else OfficialFile(form.name, md5_of_file(path), path.stat().st_size)

    def declare(dataset: FileDataset, folder: Path) -> FileDataset:
        source = dataset.source
        train = tuple(measured(file, folder) for file in source.train)
        test = tuple(measured(file, folder) for file in source.test)
        return replace(dataset, source=replace(source, train=train, test=test))

    return declare


@pytest.fixture
def numbered_set() -> ImageSet:
    """Fifty 3x6x5 images; image ``i`` has label ``i``."""
    images = torch.randint(0, 256, (50, 3, 6, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return ImageSet("numbered", images, torch.arange(50), tuple(map(str, range(50))))
