"""Fashion-MNIST: 28x28 grey pictures of ten kinds of clothing, 60,000 + 10,000, in gzipped idx files.

References:
    Xiao, Rasul, Vollgraf: Fashion-MNIST, a novel image dataset for benchmarking machine learning algorithms (2017).
"""

from torchscn.data.dataset import FileDataset
from torchscn.data.files import Source
from torchscn.data.idx import idx_decoder, idx_file

__all__ = ["FASHION_MNIST"]

CLASSES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)

SOURCE = Source(
    name="fashion_mnist",
    folders=("fashion_mnist", "FashionMNIST/raw"),
    train=(
        idx_file("train-images-idx3-ubyte", size=26_421_880, md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        idx_file("train-labels-idx1-ubyte", size=29_515, md5="25c81989df183df01b3e8a0aad5dffbe"),
    ),
    test=(
        idx_file("t10k-images-idx3-ubyte", size=4_422_102, md5="bef4ecab320f06d8554ea6380940ec79"),
        idx_file("t10k-labels-idx1-ubyte", size=5_148, md5="bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    base_url="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)

FASHION_MNIST = FileDataset("Fashion-MNIST", SOURCE, idx_decoder("fashion_mnist", CLASSES))
