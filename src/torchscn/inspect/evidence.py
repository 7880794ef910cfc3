"""Why a network answered as it did: what every atom of the last layer, and every place, adds to a score."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchscn.fusion import scale_and_offset
from torchscn.inspect.stages import dissect, look
from torchscn.network import Network

__all__ = ["Evidence", "gather_evidence", "weigh"]


@dataclass(frozen=True)
class Evidence:
    """Scores of images, taken apart. The classifier is linear in the averaged codes, so the parts add up exactly.

    Args:
        codes: of the last layer, ``(images, width, height, width)``.
        gain: what a code of 1 everywhere adds, ``(classes, width)``.
        offset: what atoms add when their code is 0, ``(classes, width)``: the mean that the last norm subtracts.
        bias: of the classifier, ``(classes,)``.
    """

    codes: Tensor
    gain: Tensor
    offset: Tensor
    bias: Tensor

    @property
    def scores(self) -> Tensor:
        """The scores, ``(images, classes)``."""
        return self.atoms().sum(2) + self.bias

    def atoms(self) -> Tensor:
        """What every atom adds to every score, ``(images, classes, width)``; with the bias these sum to the score."""
        return self.codes.mean((2, 3))[:, None] * self.gain + self.offset

    def places(self, image: int, answer: int) -> Tensor:
        """What every position adds to a score, ``(height, width)``.

        With :meth:`without_place` the sum is the score.
        """
        n_positions = self.codes.shape[2] * self.codes.shape[3]
        return torch.einsum("w,whv->hv", self.gain[answer], self.codes[image]) / n_positions

    def without_place(self, answer: int) -> float:
        """The part of a score that is the same for every image."""
        return float(self.offset[answer].sum() + self.bias[answer])


def gather_evidence(network: Network, x: Tensor) -> Evidence:
    """Take the scores of preprocessed images apart.

    Example:
        >>> from torchscn import create_model
        >>> network, x = create_model("scn1").eval(), torch.randn(2, 3, 32, 32)
        >>> evidence = gather_evidence(network, x)
        >>> with torch.no_grad():
        ...     torch.allclose(evidence.scores, network(x), atol=1e-3)
        True
    """
    codes = [seen.codes for seen in look(network, x)][-1]
    return weigh(network, codes)


def weigh(network: Network, codes: Tensor) -> Evidence:
    """Take the scores apart that codes of the last layer lead to."""
    anatomy = dissect(network)
    weight, bias = anatomy.classifier.weight.detach(), anatomy.classifier.bias.detach()
    if anatomy.norm is None:
        return Evidence(codes, weight, torch.zeros_like(weight), bias)
    scale, offset = (value.detach() for value in scale_and_offset(anatomy.norm))
    return Evidence(codes, weight * scale, weight * offset, bias)
