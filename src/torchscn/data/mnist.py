"""MNIST: 28x28 grey handwritten digits, 60,000 + 10,000, in idx files (gzip or unpacked).

References:
    LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition (1998).
"""

from torchscn.data.dataset import FileDataset
from torchscn.data.files import Source
from torchscn.data.idx import idx_decoder, idx_file

__all__ = ["MNIST"]

SOURCE = Source(
    name="mnist",
    folders=("mnist", "MNIST/raw"),
    train=(
        idx_file(
            "train-images-idx3-ubyte",
            size=9_912_422,
            md5="f68b3c2dcbeaaa9fbdd348bbdeb94873",
            unpacked_size=47_040_016,
            unpacked_md5="6bbc9ace898e44ae57da46a324031adb",
        ),
        idx_file(
            "train-labels-idx1-ubyte",
            size=28_881,
            md5="d53e105ee54ea40749a09fcbcd1e9432",
            unpacked_size=60_008,
            unpacked_md5="a25bea736e30d166cdddb491f175f624",
        ),
    ),
    test=(
        idx_file(
            "t10k-images-idx3-ubyte",
            size=1_648_877,
            md5="9fb629c4189551a2d022fa330f9573f3",
            unpacked_size=7_840_016,
            unpacked_md5="2646ac647ad5339dbf082846283269ea",
        ),
        idx_file(
            "t10k-labels-idx1-ubyte",
            size=4_542,
            md5="ec29112dd5afa0611ce80d1b7f02629c",
            unpacked_size=10_008,
            unpacked_md5="27ae3e4e09519cfbb04c329615203637",
        ),
    ),
    base_url="https://ossci-datasets.s3.amazonaws.com/mnist/",
)

MNIST = FileDataset("MNIST", SOURCE, idx_decoder("mnist", tuple("0123456789")))
