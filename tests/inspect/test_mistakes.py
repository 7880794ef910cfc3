"""Answers, confusions and the most confident errors."""

import pytest
import torch

from torchscn.data import Batches
from torchscn.inspect import Answers, answer
from torchscn.training import evaluate


def test_error_and_confusion_are_those_of_an_evaluation(network, images):
    found = answer(network, images)
    batches = Batches(images, 32, network.normalization, shuffle=False, drop_last=False)
    evaluation = evaluate(network, batches)
    assert found.error == pytest.approx(evaluation.error)
    assert torch.equal(found.confusion(), evaluation.confusion)


def test_the_most_confident_errors_come_first(images):
    scores = torch.zeros(len(images), 10)
    scores[torch.arange(len(images)), images.labels] = 5.0
    for image, strength in ((7, 9.0), (3, 20.0), (50, 6.0)):
        scores[image, (int(images.labels[image]) + 1) % 10] = strength
    found = Answers(images, scores)
    mistakes = found.mistakes(2)
    assert [mistake.image for mistake in mistakes] == [3, 7]
    assert mistakes[0].truth == int(images.labels[3])
    assert mistakes[0].answer == (mistakes[0].truth + 1) % 10
    assert mistakes[0].share > mistakes[1].share > 0.9
    assert found.error == pytest.approx(100 * 3 / len(images))


def test_no_mistakes(images):
    assert Answers(images, torch.nn.functional.one_hot(images.labels, 10).float()).mistakes(5) == []
