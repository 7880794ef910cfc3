"""Do layers cluster? The positions that share a strongest atom, compared with the clusters of k-means.

The paper says that a slim dictionary clusters: its atoms are cluster centres, and a code says how strongly a patch is
connected to each. If so, the strongest atoms should group patches much as k-means does.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from torchscn.inspect.surveys import Places

__all__ = ["ClusterScores", "compare_with_kmeans", "purity", "scikit_learn"]

NEEDED = "This part needs scikit-learn. Run: pip install torchscn[inspect]"


@dataclass(frozen=True)
class ClusterScores:
    """How far the strongest atoms of a layer agree with clusters. Agreement is adjusted mutual information.

    It is 0 for unrelated groups and 1 for equal ones.
    """

    n_positions: int
    agreement: float  # strongest atoms and k-means with as many clusters as atoms
    by_direction: float  # strongest atoms and k-means of patches scaled to unit norm: codes scale with the patch
    ceiling: float  # two runs of k-means from different starts
    floor: float  # k-means and the strongest of as many random directions
    purity: float  # share of positions whose class is the most frequent one of their strongest atom
    purity_kmeans: float  # the same for k-means
    chance: float  # share of the most frequent class: the purity of a single group
    centre_cosine: float | None  # cosine of an atom and the mean of the patches whose strongest atom it is, on average
    dominance: float  # share of the strongest atom in the sum of a code
    without_atom: float  # share of positions whose code is all zeros, or not finite; they are left out


def compare_with_kmeans(places: Places, atoms: Tensor | None = None, seed: int = 0) -> ClusterScores | None:
    """Compare the groups that the strongest atoms make with k-means of the same patches.

    Args:
        places: patches, their codes, and the class of the image they are from.
        atoms: the dictionary, one atom for every code, to compare with the centres of the groups.
        seed: of k-means and of the random directions.

    Returns:
        The scores; None if no position has an active atom.
    """
    sizes = places.codes.abs()
    used = (sizes.amax(1) > 0) & places.patches.isfinite().all(1)
    if not bool(used.any()):
        return None
    patches, sizes, labels = places.patches[used].float(), sizes[used], places.labels[used]
    n_clusters = min(sizes.shape[1], len(patches))
    strongest = sizes.argmax(1)
    signs = places.codes[used].gather(1, strongest[:, None])[:, 0].sign()
    # An atom that is subtracted says the opposite.
    own = 2 * strongest + (signs < 0)
    groups = _kmeans(patches, n_clusters, seed)
    directions = torch.randn(
        sizes.shape[1], patches.shape[1], generator=torch.Generator().manual_seed(seed), dtype=patches.dtype
    )
    return ClusterScores(
        n_positions=len(patches),
        agreement=_agreement(own, groups),
        by_direction=_agreement(own, _kmeans(F.normalize(patches), n_clusters, seed)),
        ceiling=_agreement(groups, _kmeans(patches, n_clusters, seed + 1)),
        floor=_agreement((patches @ F.normalize(directions).T).argmax(1), groups),
        purity=purity(own, labels),
        purity_kmeans=purity(groups, labels),
        chance=float(labels.bincount().max() / len(labels)),
        centre_cosine=None if atoms is None else _centre_cosine(atoms, patches, strongest, signs),
        dominance=float((sizes.amax(1) / sizes.sum(1)).mean()),
        without_atom=1 - float(used.double().mean()),
    )


def purity(groups: Tensor, labels: Tensor) -> float:
    """The share of members whose label is the most frequent one of their group.

    Example:
        >>> purity(torch.tensor([0, 0, 0, 1]), torch.tensor([7, 7, 3, 3]))
        0.75
    """
    if not len(labels):
        raise ValueError("purity needs at least one member.")
    n_labels = int(labels.max()) + 1
    table = torch.bincount(groups * n_labels + labels, minlength=n_labels * (int(groups.max()) + 1))
    return float(table.view(-1, n_labels).amax(1).sum() / len(labels))


def _centre_cosine(atoms: Tensor, patches: Tensor, strongest: Tensor, signs: Tensor) -> float:
    """Over positions: how much an atom points to the centre of its group, seen from the mean of all patches."""
    atoms = atoms.flatten(1).to(patches)
    centres = torch.zeros_like(atoms).index_add_(0, strongest, signs.to(patches)[:, None] * (patches - patches.mean(0)))
    return float(F.cosine_similarity(atoms, centres)[strongest].mean())


def _kmeans(points: Tensor, n_clusters: int, seed: int) -> Tensor:
    with scikit_learn() as sklearn:
        # Random starts: the usual careful one takes much longer than the rest with hundreds of clusters.
        kmeans = sklearn.cluster.KMeans(n_clusters, init="random", n_init=2, max_iter=100, random_state=seed)
        return torch.from_numpy(kmeans.fit(points.numpy()).labels_).long()


def _agreement(one: Tensor, other: Tensor) -> float:
    with scikit_learn() as sklearn:
        return float(sklearn.metrics.adjusted_mutual_info_score(one.numpy(), other.numpy()))


@contextmanager
def scikit_learn() -> Iterator[Any]:
    """scikit-learn, in one thread and without its warnings.

    Its threads wait actively for each other, which takes thirty times as long when torch's threads, or anything else,
    need the same cores. Its warnings are about equal points and about the last digits of fits that are good enough.
    """
    try:
        import sklearn
        import sklearn.cluster
        import sklearn.linear_model
        import sklearn.metrics
        import sklearn.model_selection
        import sklearn.preprocessing
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise ImportError(NEEDED) from error
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield sklearn
