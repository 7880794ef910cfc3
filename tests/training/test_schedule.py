"""Learning rate, image size and tests over a run."""

import pytest

from torchscn.training.config import TrainConfig
from torchscn.training.schedule import image_scale, is_tested, learning_rate


def test_schedules():
    cosine = TrainConfig(lr=1.0, epochs=10, warmup=2.0)
    assert learning_rate(cosine, 0, 5) == pytest.approx(0.1)
    assert learning_rate(cosine, 9, 5) == pytest.approx(1.0)
    assert learning_rate(cosine, 30, 5) == pytest.approx(0.5)
    assert learning_rate(cosine, 49, 5) < 0.01
    assert learning_rate(TrainConfig(lr=1.0, epochs=2, warmup=0.01), 0, 10) == 1.0
    cycle = TrainConfig(lr=1.0, epochs=10, schedule="onecycle", warmup=0.2)
    assert learning_rate(cycle, 0, 10) == pytest.approx(0.05)
    assert learning_rate(cycle, 20, 10) == pytest.approx(1.0)
    assert learning_rate(cycle, 60, 10) == pytest.approx(0.5)


def test_images_are_small_in_the_first_epochs():
    config = TrainConfig(epochs=10, early_size=0.75, early_share=0.4)
    assert [image_scale(config, epoch) for epoch in range(10)] == [0.75] * 4 + [1.0] * 6
    assert image_scale(TrainConfig(epochs=10), 0) == 1.0
    assert image_scale(TrainConfig(epochs=2, early_size=0.5, early_share=1.0), 1) == 0.5
    rounded = TrainConfig(epochs=25, early_size=0.5, early_share=0.28)  # 0.28 * 25 is a little more than 7
    assert [image_scale(rounded, epoch) for epoch in (6, 7)] == [0.5, 1.0]


def test_the_last_epoch_is_always_tested():
    assert all(is_tested(TrainConfig(epochs=3), epoch) for epoch in range(3))
    assert [is_tested(TrainConfig(epochs=3, test_every=9), epoch) for epoch in range(3)] == [False, False, True]
