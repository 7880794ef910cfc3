"""Learning rate, image size and tests as functions of the step, so that a resumed run needs no saved schedule."""

import math

from torchscn.training.config import TrainConfig

__all__ = ["image_scale", "is_tested", "learning_rate", "share_of_peak"]


def learning_rate(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Learning rate of a step, counted from 0 over the whole run.

    Example:
        >>> config = TrainConfig(lr=0.1, epochs=100, schedule="steps", milestones=(40, 80))
        >>> [round(learning_rate(config, step, 1), 4) for step in (0, 39, 40, 80)]
        [0.1, 0.1, 0.01, 0.001]
    """
    return config.lr * share_of_peak(config, step, steps_per_epoch)


def share_of_peak(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Learning rate of a step as a share of its peak, the same for all groups of parameters."""
    total = config.epochs * steps_per_epoch
    if config.schedule == "onecycle":
        return _triangle(step / total, config.warmup)
    rise = config.warmup * steps_per_epoch
    if step < rise:
        return min(1.0, (step + 1) / rise)
    if config.schedule == "steps":
        passed = sum(step >= epoch * steps_per_epoch for epoch in config.milestones)
        return 0.1**passed
    return (1 + math.cos(math.pi * (step - rise) / (total - rise))) / 2


def image_scale(config: TrainConfig, epoch: int) -> float:
    """Sides of the images in an epoch, counted from 0, as a share of the full ones.

    Example:
        >>> config = TrainConfig(epochs=4, early_size=0.75, early_share=0.5)
        >>> [image_scale(config, epoch) for epoch in range(4)]
        [0.75, 0.75, 1.0, 1.0]
    """
    small = round(config.early_share * config.epochs, 6)  # 0.28 of 25 is 7, not a little more
    return config.early_size if epoch < small else 1.0


def is_tested(config: TrainConfig, epoch: int) -> bool:
    """Whether the network is tested after an epoch, counted from 0.

    Example:
        >>> [is_tested(TrainConfig(epochs=5, test_every=2), epoch) for epoch in range(5)]
        [False, True, False, True, True]
    """
    return (epoch + 1) % config.test_every == 0 or epoch + 1 == config.epochs


def _triangle(progress: float, peak: float) -> float:
    """A twentieth to 1 at ``peak``, then linearly to 0 at the end."""
    if progress < peak:
        return 0.05 + 0.95 * progress / peak
    return (1 - progress) / (1 - peak)
