import threading
from contextlib import contextmanager

import pytest
import torch

from torchscn.data import Augmentation, Batches, Normalization

AUGMENTATION = Augmentation(shift=2, flip=True, cutout=2)


@pytest.fixture
def make(numbered_set):
    normalization = Normalization.fit(numbered_set.images)

    def batches(batch_size=8, augmentation=AUGMENTATION, **options) -> Batches:
        return Batches(numbered_set, batch_size, normalization, augmentation, **options)

    return batches


def assert_same(left, right):
    left, right = list(left), list(right)
    assert len(left) == len(right) > 0
    for (x, labels), (other_x, other_labels) in zip(left, right, strict=True):
        assert torch.equal(labels, other_labels)
        assert torch.equal(x, other_x)


def test_an_epoch_shows_every_image_once(make):
    batches = make(drop_last=False)
    assert [len(labels) for _, labels in batches.epoch(0)] == [8] * 6 + [2]
    assert sorted(torch.cat([labels for _, labels in batches.epoch(3)]).tolist()) == list(range(50))


@pytest.mark.parametrize(("drop_last", "n_batches"), [(True, 6), (False, 7)])
def test_length_is_the_number_of_batches(make, drop_last, n_batches):
    batches = make(drop_last=drop_last)
    assert len(batches) == n_batches == len(list(batches.epoch(0)))


def test_images_go_with_their_labels(make, numbered_set):
    batches = make(augmentation=None)
    for x, labels in batches.epoch(0):
        torch.testing.assert_close(x, batches.normalization(numbered_set.images[labels]))
        assert x.dtype == torch.float32
        assert x.is_contiguous(memory_format=torch.channels_last)


def test_order_depends_on_epoch_and_seed(make):
    def order(epoch, **options):
        return torch.cat([labels for _, labels in make(**options).epoch(epoch)]).tolist()

    assert order(0) == order(0)
    assert order(0) != order(1)
    assert order(0) != order(0, seed=1)
    assert order(5, shuffle=False) == list(range(48))


def test_augmentation_differs_between_batches_epochs_and_seeds(make):
    """Unshuffled, so that only the augmentation can differ."""

    def first_draw(epoch, start, **options):
        batches = make(batch_size=10, augmentation=Augmentation(cutout=3), shuffle=False, **options)
        x, labels = next(batches.epoch(epoch, start=start))
        return (x == 0).all(1).tolist(), labels.tolist()

    assert first_draw(0, 0) == first_draw(0, 0)
    assert first_draw(0, 0) != first_draw(1, 0)
    assert first_draw(0, 0) != first_draw(0, 0, seed=1)
    assert first_draw(0, 0)[0] != first_draw(0, 1)[0]


@pytest.mark.parametrize("prefetch", [False, True])
def test_resuming_gives_the_same_batches_whatever_came_before(make, prefetch):
    whole = list(make().epoch(4))
    torch.manual_seed(77)
    resumed = make(prefetch=prefetch)
    next(resumed.epoch(1))
    assert_same(resumed.epoch(4, start=2), whole[2:])
    assert list(resumed.epoch(4, start=6)) == []


@pytest.mark.parametrize("per_image", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_ranks_together_see_what_one_process_sees(make, per_image, drop_last):
    augmentation = Augmentation(shift=2, flip=True, cutout=2, per_image=per_image)
    alone = make(augmentation=augmentation, drop_last=drop_last).epoch(2)
    ranks = [make(augmentation=augmentation, drop_last=drop_last, rank=r, world_size=4).epoch(2) for r in range(4)]
    for (x, labels), *shares in zip(alone, *ranks, strict=True):
        for rank, (share, share_labels) in enumerate(shares):
            assert torch.equal(share, x[rank::4])
            assert torch.equal(share_labels, labels[rank::4])


def test_prefetch_changes_nothing(make):
    assert_same(make(prefetch=True, drop_last=False).epoch(1), make(drop_last=False).epoch(1))


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("torchscn-prefetch")]


def test_prefetch_works_ahead_and_stops_with_its_consumer(make):
    made = []
    second_made = threading.Event()
    batches = make(prefetch=True)
    inner = batches.normalization

    def spy(images):
        made.append(len(images))
        if len(made) == 2:
            second_made.set()
        return inner(images)

    batches.normalization = spy
    epoch = batches.epoch(0)
    next(epoch)
    assert second_made.wait(timeout=10)
    assert prefetch_threads()
    epoch.close()
    assert not prefetch_threads()
    assert len(made) == 2


def test_prefetch_hands_on_errors_at_their_place(make):
    batches = make(prefetch=True)
    inner, calls = batches.normalization, []

    def fail_third(images):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("third batch")
        return inner(images)

    batches.normalization = fail_third
    epoch = batches.epoch(0)
    next(epoch)
    next(epoch)
    with pytest.raises(RuntimeError, match="third batch"):
        next(epoch)
    assert not prefetch_threads()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 51}, "batch_size=51 is more than the 50 images of 'numbered'.*drop_last=False"),
        ({"batch_size": 0}, "batch_size must be a whole number, at least 1; got 0"),
        ({"batch_size": 8, "world_size": 3}, "multiple of 3, for example 9"),
        ({"rank": 2, "world_size": 2}, "rank must lie between 0 and world_size - 1 = 1; got 2"),
    ],
)
def test_bad_options_are_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize("name", ["shift", "cutout"])
def test_augmentation_larger_than_the_images_is_refused(make, name):
    make(augmentation=Augmentation(**{name: 5}))
    with pytest.raises(ValueError, match=f"{name}=6 is larger than the images, which have 6 x 5 pixels"):
        make(augmentation=Augmentation(**{name: 6}))


def test_bad_epochs_are_refused_at_once(make):
    with pytest.raises(ValueError, match="start=7 is past the end: an epoch has 6 batches"):
        make().epoch(0, start=7)
    with pytest.raises(ValueError, match="index must be"):
        make().epoch(-1)


def test_a_large_batch_is_fine_when_it_need_not_be_full(make):
    assert [len(labels) for _, labels in make(batch_size=64, drop_last=False).epoch(0)] == [50]


def test_no_images_are_refused(make, numbered_set):
    with pytest.raises(ValueError, match="'numbered' holds no images"):
        Batches(numbered_set.take([]), 8, make().normalization, drop_last=False)


def test_batches_for_a_gpu_are_pinned_where_they_are_made(make, monkeypatch):
    """Page-locked memory needs a GPU, so here only where and on behalf of which GPU it would be asked for."""
    pinned = []

    @contextmanager
    def device(which):
        occupied.append(which)
        yield
        occupied.pop()

    def pin_memory(tensor):
        pinned.append((tuple(tensor.shape), *occupied, threading.current_thread().name.split("_")[0]))
        return tensor.clone()

    occupied: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    second = torch.device("cuda", 1)
    batches = make(prefetch=True, pinned_for=second)
    assert_same(batches.epoch(1), make().epoch(1))
    assert len(pinned) == 2 * len(batches)
    assert {entry[1:] for entry in pinned} == {(second, "torchscn-prefetch")}
    pinned.clear()
    list(make().epoch(0))
    assert not pinned


def test_alternating_flips_show_both_sides_in_two_epochs(make, numbered_set):
    plain = {int(label): x for x, labels in make(1, None).epoch(0) for label in labels}
    alternating = Augmentation(flip=True, alternate_flip=True)
    first, second, third = ({int(label): x for x, label in make(1, alternating).epoch(n)} for n in range(3))
    mirrored = []
    for label, x in plain.items():
        sides = [first[label], second[label]]
        mirrored.append(torch.equal(sides[0], x.flip(-1)))
        assert torch.equal(sides[not mirrored[-1]], x.flip(-1))
        assert torch.equal(sides[mirrored[-1]], x)
        assert torch.equal(third[label], first[label])
    assert 0 < sum(mirrored) < len(mirrored)


def test_ranks_share_alternating_flips(make):
    alternating = Augmentation(flip=True, alternate_flip=True)
    whole = torch.cat([x for x, _ in make(8, alternating).epoch(1)])
    shares = [[x for x, _ in make(8, alternating, rank=rank, world_size=2).epoch(1)] for rank in range(2)]
    joined = torch.cat([torch.stack(pair, 1).flatten(0, 1) for pair in zip(*shares, strict=True)])
    assert torch.equal(joined, whole)
