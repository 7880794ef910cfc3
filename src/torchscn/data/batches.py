"""Batches whose content depends on (seed, epoch, batch) and nothing else: resumable without saved state."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from torchscn.data.augment import Augmentation
from torchscn.data.errors import check_count
from torchscn.data.image_set import ImageSet
from torchscn.data.normalize import Normalization

__all__ = ["Batches"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batches:
    """Shuffled, normalized, augmented batches of an :class:`ImageSet`.

    The order of an epoch and the augmentation of a batch are drawn only from ``(seed, epoch, batch)``, so any batch of
    any epoch can be made at any time: to resume, ask for ``epoch(e, start=b)``. With several ranks, each takes its
    share of the same global batch, drawn and augmented as if there were one.

    Args:
        images: the images, all in memory.
        batch_size: images per global batch, over all ranks.
        normalization: turns uint8 images into float32.
        augmentation: random changes after that, or ``None``.
        shuffle: a new order every epoch; ``False`` keeps the order of ``images``.
        seed: chooses orders and augmentations.
        drop_last: leave out the last batch if it is not full; if kept, some ranks may get fewer rows of it, or none.
        rank: this process gets the rows ``rank::world_size`` of every batch.
        world_size: number of processes; it must divide ``batch_size``.
        prefetch: prepare the next batch in a background thread while the current one is used; same batches.
        pinned_for: a CUDA device that the batches will be copied to: they are then made in page-locked memory, from
            which copying does not stop the CPU.

    Example:
        >>> images = torch.arange(10, dtype=torch.uint8).reshape(10, 1, 1, 1)
        >>> ten = ImageSet("ten", images, torch.arange(10), tuple("abcdefghij"))
        >>> batches = Batches(ten, 4, Normalization.fit(images), seed=0, drop_last=False)
        >>> [len(labels) for x, labels in batches.epoch(0)]
        [4, 4, 2]
        >>> [len(labels) for x, labels in batches.epoch(0, start=2)]
        [2]
    """

    def __init__(
        self,
        images: ImageSet,
        batch_size: int,
        normalization: Normalization,
        augmentation: Augmentation | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        rank: int = 0,
        world_size: int = 1,
        prefetch: bool = False,
        pinned_for: torch.device | None = None,
    ) -> None:
        _check_sizes(images, batch_size, drop_last)
        _check_ranks(rank, world_size, batch_size)
        if augmentation is not None:
            augmentation.check_fits(*images.images.shape[2:])
        self.images = images
        self.batch_size = batch_size
        self.normalization = normalization
        self.augmentation = augmentation
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self.prefetch = prefetch
        self.pinned_for = pinned_for

    def __len__(self) -> int:
        """Batches per epoch."""
        full, rest = divmod(len(self.images), self.batch_size)
        return full if self.drop_last or not rest else full + 1

    def epoch(self, index: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch.

        Args:
            index: number of the epoch, from 0.
            start: first batch to yield; ``len(self)`` yields nothing.

        Returns:
            Iterator over ``(x, labels)``: float32 ``(n, channels, height, width)`` in channels_last memory, and
            int64 ``(n,)``.
        """
        check_count("index", index, at_least=0)
        check_count("start", start, at_least=0)
        if start > len(self):
            raise ValueError(f"start={start} is past the end: an epoch has {len(self)} batches.")
        order = self._order(index)
        numbers = range(start, len(self))

        def make(number: int) -> tuple[Tensor, Tensor]:
            x, labels = self._batch(order, index, number)
            if self.pinned_for is None:
                return x, labels
            return _pin(x, self.pinned_for), _pin(labels, self.pinned_for)

        return _map_ahead(make, numbers) if self.prefetch else (make(number) for number in numbers)

    @cached_property
    def _mirrored_first(self) -> Tensor:
        """Which images alternating flips mirror in the first epoch."""
        return torch.rand(len(self.images), generator=_generator("flip", self.seed)) < 0.5

    def _order(self, epoch: int) -> Tensor:
        """The order of the images in this epoch."""
        if not self.shuffle:
            return torch.arange(len(self.images))
        return torch.randperm(len(self.images), generator=_generator("order", self.seed, epoch))

    def _batch(self, order: Tensor, epoch: int, number: int) -> tuple[Tensor, Tensor]:
        """This rank's rows of one global batch."""
        global_rows = order[number * self.batch_size : (number + 1) * self.batch_size]
        rows = global_rows[self.rank :: self.world_size]
        x = self.normalization(self.images.images[rows])
        if self.augmentation is not None:
            height, width = x.shape[2:]
            chance = _generator("augmentation", self.seed, epoch, number)
            draws = self.augmentation.draw(len(global_rows), height, width, chance)
            if self.augmentation.alternate_flip:
                draws = replace(draws, mirrored=self._mirrored_first[global_rows] ^ bool(epoch % 2))
            x = self.augmentation.apply(x, draws.every(self.world_size, start=self.rank))
        return x, self.images.labels[rows]


def _generator(*key: str | int) -> torch.Generator:
    """A generator seeded by the key; nearby keys give unrelated streams."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)


def _pin(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy in page-locked memory. A background thread would otherwise occupy the first GPU instead of its own."""
    with torch.cuda.device(device):
        return tensor.pin_memory()


def _map_ahead(make: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """``map(make, items)``, with the next result made in a background thread while the current one is used."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="torchscn-prefetch") as pool:
        pending: Future[Result] | None = None
        for item in items:
            following = pool.submit(make, item)
            if pending is not None:
                yield pending.result()
            pending = following
        if pending is not None:
            yield pending.result()


def _check_sizes(images: ImageSet, batch_size: int, drop_last: bool) -> None:
    check_count("batch_size", batch_size, at_least=1)
    if not len(images):
        raise ValueError(f"{images.name!r} holds no images.")
    if drop_last and batch_size > len(images):
        raise ValueError(
            f"batch_size={batch_size} is more than the {len(images)} images of {images.name!r}, and drop_last=True "
            f"leaves no batch. Use a batch_size of at most {len(images)}, or drop_last=False."
        )


def _check_ranks(rank: int, world_size: int, batch_size: int) -> None:
    check_count("world_size", world_size, at_least=1)
    check_count("rank", rank, at_least=0)
    if rank >= world_size:
        raise ValueError(f"rank must lie between 0 and world_size - 1 = {world_size - 1}; got {rank}.")
    if batch_size % world_size:
        raise ValueError(
            f"batch_size={batch_size} cannot be shared equally by {world_size} processes; "
            f"use a multiple of {world_size}, for example {batch_size + world_size - batch_size % world_size}."
        )
