"""Train a network that mixes sparse coding layers with ordinary ones on the 8 x 8 digits of scikit-learn.

``SparseCoding2d`` replaces ``Conv2d`` followed by ``ReLU``; everything else is unchanged except for one line,
``attach_projection``, which keeps the learned penalties non-negative.
"""

import torch
from rich.progress import track
from sklearn.datasets import load_digits
from torch import Tensor, nn

import torchscn


def make_network() -> nn.Sequential:
    return nn.Sequential(
        torchscn.SparseCoding2d(1, 16),
        nn.BatchNorm2d(16),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        torchscn.SparseCoding2d(32, 32),
        nn.BatchNorm2d(32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, then test images and labels."""
    digits = load_digits()
    x = torch.from_numpy(digits.images).float().unsqueeze(1) / 8 - 1
    labels = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(x))
    train, test = order[360:], order[:360]
    return x[train], labels[train], x[test], labels[test]


def main() -> None:
    torch.manual_seed(0)
    x, labels, test_x, test_labels = load()
    net = make_network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    torchscn.attach_projection(optimizer, net)
    for _ in track(range(15), description="training"):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), labels[rows]).backward()
            optimizer.step()
    net.eval()
    with torch.no_grad():
        accuracy = (net(test_x).argmax(1) == test_labels).float().mean()
    print(f"test accuracy {100 * accuracy:.1f} %")


if __name__ == "__main__":
    main()
