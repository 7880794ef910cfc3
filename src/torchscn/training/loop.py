"""The training loop, from top to bottom."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from torchscn import data
from torchscn.certificates import LayerCertificate, certify, spread_sample
from torchscn.data import Batches, ImageSet, Normalization, resize
from torchscn.layers import attach_projection
from torchscn.network import Network
from torchscn.training.checkpoint import Checkpoint, Position, load_checkpoint, optimizer_tensors, save_checkpoint
from torchscn.training.config import ConfigError, TrainConfig
from torchscn.training.device import autocast, batch_options, check_device, place_model, to_device
from torchscn.training.distributed import Process, start_process, stop_process, sum_over_ranks, was_restarted, wrap
from torchscn.training.ema import AveragedWeights
from torchscn.training.errors import Interrupted
from torchscn.training.evaluation import evaluate
from torchscn.training.optimizer import make_optimizer, set_rates
from torchscn.training.recent import RecentSteps, steps_between_reads
from torchscn.training.report import Reporter
from torchscn.training.run_folder import RunFolder, TrainedModel
from torchscn.training.schedule import image_scale, is_tested, learning_rate, share_of_peak
from torchscn.training.signals import watch_signals
from torchscn.training.start import adopt_start, load_start
from torchscn.weights import CheckpointError, TrainedWeights, is_finite, write_weights

__all__ = ["DivergenceError", "Position", "TrainResult", "evaluation_batches", "fit", "load_data", "train"]


class DivergenceError(RuntimeError):
    """The loss is no longer finite."""


@dataclass(frozen=True)
class TrainResult:
    """The result of a finished run."""

    model: nn.Module  # with the weights that were evaluated last (averaged ones with ema)
    normalization: Normalization
    metrics: list[dict[str, Any]]  # one entry per epoch
    folder: Path


def train(
    config: TrainConfig,
    run_dir: Path,
    *,
    data_dir: Path | None = None,
    resume: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> TrainResult:
    """Train the model of ``config`` on its data; the files of the run go to ``run_dir``.

    Under ``torchrun``, every process takes its share of each batch, and a restarted one resumes automatically.

    Args:
        config: all settings.
        run_dir: folder of the run; created if needed.
        data_dir: where the data sets are; None uses ``TORCHSCN_DATA``.
        resume: continue from the folder's checkpoint, exactly as if the run had never stopped.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``.
        quiet: print nothing.
    """
    process = start_process(device)
    check_device(config, process.device)  # before time is spent on the data
    # A resumed run has weights of its own, and does not need what it started from.
    name = None if RunFolder(run_dir).has_checkpoint() else config.start_from
    start = load_start(name) if name is not None else None
    train_set, test_set = load_data(config, data_dir)
    torch.manual_seed(config.seed)
    model = config.make_model(len(train_set.classes), train_set.images.shape[1])
    if start is not None:
        adopt_start(model, start, train_set.classes)
    about = start.about if start is not None else None
    with ExitStack() as held:
        result = _fit(model, train_set, test_set, config, run_dir, resume, process, quiet, about, held)
    stop_process()
    return result


def load_data(config: TrainConfig, data_dir: Path | None) -> tuple[ImageSet, ImageSet]:
    """The images to train and to test on; with ``validation``, the latter are held-out training images."""
    train_set = data.load(config.data, "train", data_dir)
    if config.validation:
        train_set, test_set = train_set.split(config.validation, seed=0)
    else:
        test_set = data.load(config.data, "test", data_dir)
    if config.limit:
        # At random, because the images of a folder are sorted by class.
        order = torch.randperm(len(train_set), generator=torch.Generator().manual_seed(config.seed))
        train_set = train_set.take(order[: config.limit].sort().values)
    return train_set, test_set


def evaluation_batches(trained: TrainedModel, data_dir: Path | None, batch_size: int = 256) -> Batches:
    """The images a run is tested on, preprocessed for its network.

    Raises:
        ValueError: the data set has different classes from the one the network was trained on.
    """
    model = trained.model
    assert model.normalization is not None
    config = trained.config
    if config.validation:
        _, test_set = load_data(config, data_dir)
    else:
        test_set = data.load(config.data, "test", data_dir)
    if test_set.classes != model.classes:
        raise ValueError(
            f"the network was trained on {model.num_classes} classes, but {config.data!r} has "
            f"{len(test_set.classes)}: is this the same data?"
        )
    return Batches(test_set, batch_size, model.normalization, shuffle=False, drop_last=False, prefetch=True)


def fit(
    model: nn.Module,
    train_set: ImageSet,
    test_set: ImageSet,
    config: TrainConfig,
    run_dir: Path,
    *,
    resume: bool = False,
    process: Process | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Train any classifier on any images with the optimisation settings of ``config``.

    Args:
        model: maps images ``(batch, channels, height, width)`` to one score per class; ``lam1`` of its sparse coding
            layers is kept non-negative.
        train_set: images to train on.
        test_set: images to test on.
        config: settings; those about data and model are only recorded. A new run is refused with
            ``start_from``, because it trains the weights that the model has.
        run_dir: folder of the run.
        resume: continue from the folder's checkpoint.
        process: this process among all, from :func:`torchscn.training.start_process`.
        quiet: print nothing.

    Raises:
        ConfigError: ``config`` has a ``start_from``, and there is nothing to resume.
        DivergenceError: the loss is no longer finite.
        Interrupted: on Ctrl-C or a termination signal, after writing a checkpoint.
    """
    if config.start_from is not None and not RunFolder(run_dir).has_checkpoint():
        raise ConfigError(
            f"start_from={config.start_from!r} does nothing here: fit trains the weights that the model has. "
            "Load them into the model first, for example from torchscn.load_trained, and leave start_from out."
        )
    with ExitStack() as held:
        return _fit(model, train_set, test_set, config, run_dir, resume, process or Process(), quiet, None, held)


def _fit(
    model: nn.Module,
    train_set: ImageSet,
    test_set: ImageSet,
    config: TrainConfig,
    run_dir: Path,
    resume: bool,
    process: Process,
    quiet: bool,
    started_from: dict[str, Any] | None,
    held: ExitStack,
) -> TrainResult:
    """:func:`fit`, of a network that started as ``started_from`` says.

    Whatever must be let go at the end of the run, however it ends, goes to ``held``.
    """
    check_device(config, process.device)
    run = RunFolder(run_dir)
    _check_folder(run, resume)
    normalization = Normalization.fit(train_set.images, per_pixel=config.mean == "pixel", divide=config.divide_std)
    placement = {"rank": process.rank, "world_size": process.world_size, **batch_options(process.device)}
    shares: Callable[..., Batches] = functools.partial(Batches, **placement)
    augmentation = config.make_augmentation()
    batches = shares(train_set, config.batch_size, normalization, augmentation, seed=config.seed)
    test_batches = shares(test_set, config.batch_size, normalization, shuffle=False, drop_last=False)
    if process.is_main:
        held.enter_context(run.lock())
        _check_folder(run, resume)  # again: another training may have ended in the meantime
        run.begin(config, started_from)
    reporter = Reporter(run, config, is_main=process.is_main, quiet=quiet)
    sample = normalization(spread_sample(train_set.images)).to(process.device)

    model = place_model(model, process.device)
    _check_scores(model, sample, train_set)
    model.train()
    optimizer = make_optimizer(model, config)
    attach_projection(optimizer, model, config.max_norm or None)
    average = AveragedWeights(model, config.ema) if config.ema else None

    position = Position()
    metrics: list[dict[str, Any]] = []
    if run.has_checkpoint():
        # A mask in the user's network may be infinite from the start; anything else that is not finite is damage.
        infinite = [name for name, value in model.state_dict().items() if not is_finite(value)]
        checkpoint, problem = load_checkpoint(run.path, may_be_infinite=infinite)
        if problem:
            reporter.warn(problem)
        checkpoint.restore_model(model)
        checkpoint.restore_optimizer(optimizer)
        if average:
            average.restore(checkpoint.averaged_weights(average.weights))
        position = checkpoint.position
        _check_position(position, len(batches), checkpoint.source)
        if not process.is_main:
            # The checkpoint holds the main process's sums; those of the others are lost in a restart.
            position = Position(position.epoch, position.batch, seconds=position.seconds)
        metrics = [entry for entry in run.read_metrics() if entry["epoch"] <= position.epoch]
        if process.is_main:
            for sentence in run.mend_records(position.epoch, finished=position.epoch >= config.epochs):
                reporter.warn(sentence)
        reporter.say(f"resuming in epoch {position.epoch + 1}, batch {position.batch + 1}")
    replica = wrap(model, process, compiled=config.compile)
    height, width = train_set.images.shape[2:]
    about = {"classes": train_set.classes, "image_size": [height, width], "network": config.network()}

    def save(position: Position) -> None:
        """Write a checkpoint of everything the rest of the run depends on."""
        if not process.is_main:
            return
        tensors = {"model": model.state_dict(), "optimizer": optimizer_tensors(optimizer)}
        tensors["normalization"] = normalization.state()
        if average:
            tensors["ema"] = average.weights
        numbers = {"position": dataclasses.asdict(position), "about": about}
        save_checkpoint(run.path, Checkpoint(tensors, numbers))

    recent, read_every = RecentSteps(), steps_between_reads(process.device)
    with watch_signals() as interrupted, reporter:
        while position.epoch < config.epochs:
            last_save = time.monotonic()
            started = time.monotonic() - position.seconds
            for x, labels in batches.epoch(position.epoch, start=position.batch):
                step = position.epoch * len(batches) + position.batch
                set_rates(optimizer, share_of_peak(config, step, len(batches)))
                x, labels = to_device(x, process.device), to_device(labels, process.device)
                x = resize(x, image_scale(config, position.epoch))
                loss, n_wrong = train_step(replica, optimizer, x, labels, config)
                if average:
                    average.update(model, step)
                position.batch += 1
                recent.add(loss, n_wrong, len(labels))
                reads = position.batch % read_every == 0 or position.batch == len(batches)
                must_stop = _must_stop(bool(interrupted), process, others_asked=reads)
                must_save = time.monotonic() - last_save > config.checkpoint_seconds
                if not (reads or must_stop or must_save):
                    continue
                _count(recent, position, config)
                position.seconds = time.monotonic() - started
                reporter.step(position, len(batches), process.world_size)
                if must_stop:
                    save(position)
                    raise Interrupted(
                        f"stopped in epoch {position.epoch + 1}; resume with --resume --run-dir {run_dir}",
                        *interrupted[:1],
                    )
                if must_save:
                    save(position)
                    last_save = time.monotonic()

            tested: dict[str, Any] = {}
            certificates: list[LayerCertificate] = []
            if is_tested(config, position.epoch):
                with average.applied_to(model) if average else _unchanged(model):
                    tested, certificates = _test(model, test_batches, sample, process.device)
            sums = torch.tensor([position.loss_sum, position.n_wrong, position.n_seen], dtype=torch.float64)
            loss_sum, n_wrong_sum, n_seen = sum_over_ranks(sums.to(process.device)).tolist()
            metrics.append(
                {
                    "epoch": position.epoch + 1,
                    "train_loss": loss_sum / n_seen,
                    "train_error": 100 * n_wrong_sum / n_seen,
                    # Of the last step. The optimizer does not know it if the run was resumed after that step.
                    "lr": learning_rate(config, (position.epoch + 1) * len(batches) - 1, len(batches)),
                    "seconds": position.seconds,
                    "images_per_second": n_seen / max(position.seconds, 1e-9),
                    **tested,
                }
            )
            if process.is_main:
                run.write_metrics(metrics)
            reporter.epoch(metrics[-1], certificates)
            position = position.next_epoch()
            save(position)

        if average:
            average.copy_to(model)
        if process.is_main:
            write_weights(run.weights, TrainedWeights(model.state_dict(), normalization.state(), about))
            reporter.finish(metrics)
    if isinstance(model, Network):
        model.remember(normalization, train_set.classes, (height, width))
    return TrainResult(model, normalization, metrics, run.path)


def _check_folder(run: RunFolder, resume: bool) -> None:
    """Check that a new run overwrites nothing, and that a run to resume exists."""
    if run.has_checkpoint():
        if not (resume or was_restarted()):
            raise ConfigError(f"{run.path} already holds a run; continue it (--resume) or choose another --run-dir.")
    elif run.weights.exists():
        raise ConfigError(f"{run.path} already holds a finished run; choose another --run-dir.")
    elif resume:
        raise ConfigError(f"{run.path} holds no checkpoint to resume from; leave --resume out for a new run.")


def _check_position(position: Position, n_batches: int, source: str) -> None:
    """Check that the position in a checkpoint exists in this run."""
    if position.batch > n_batches:
        raise CheckpointError(
            f"{source} is at batch {position.batch} of an epoch, but an epoch has {n_batches}: is this the same data?"
        )


def _check_scores(model: nn.Module, sample: Tensor, images: ImageSet) -> None:
    """Check that there is one score for each class, before any time is spent."""
    with torch.no_grad():
        scores = model.eval()(sample)
    expected = (len(sample), len(images.classes))
    if scores.shape != expected:
        raise ValueError(
            f"the model's output has shape {tuple(scores.shape)} for {len(sample)} images of "
            f"{len(images.classes)} classes; it should be {expected}."
        )


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, labels: Tensor, config: TrainConfig
) -> tuple[Tensor, Tensor]:
    """One step of gradient descent; returns the loss and the number of wrong answers on the batch.

    Nothing in it waits for the device; reading what it returns does.
    """
    optimizer.zero_grad()
    with autocast(x.device, config.amp):
        scores = model(x)
        loss = F.cross_entropy(scores, labels, label_smoothing=config.label_smoothing)
    loss.backward()
    if config.clip:
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
    optimizer.step()
    return loss.detach(), (scores.detach().argmax(1) != labels).sum()


def _test(
    model: nn.Module, batches: Batches, sample: Tensor, device: torch.device
) -> tuple[dict[str, Any], list[LayerCertificate]]:
    """What a test adds to the record of its epoch, and the certificates of the layers."""
    started = time.monotonic()
    test = evaluate(model, batches, device)
    certificates = certify(model, sample)
    entry = {
        "test_loss": test.loss,
        "test_error": test.error,
        "evaluation_seconds": time.monotonic() - started,
        "layers": [dataclasses.asdict(certificate) for certificate in certificates],
    }
    return entry, certificates


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    yield


def _must_stop(interrupted: bool, process: Process, others_asked: bool) -> bool:
    """Whether to stop after this step: all processes must stop at the same one, or the others wait for it forever.

    Args:
        interrupted: whether this process was asked to stop.
        process: this process among all.
        others_asked: whether this is a step after which the processes ask each other, which makes them wait.
    """
    if process.world_size == 1:
        return interrupted
    return others_asked and bool(sum_over_ranks(torch.tensor(float(interrupted), device=process.device)))


def _count(recent: RecentSteps, position: Position, config: TrainConfig) -> None:
    """Read the steps up to ``position`` that were not read yet, and add them to its sums."""
    first = position.batch - len(recent) + 1
    for batch, step in enumerate(recent.read(), start=first):
        position.loss_sum += step.loss * step.n_images
        position.n_wrong += step.n_wrong
        position.n_seen += step.n_images
        if not math.isfinite(step.loss):
            raise DivergenceError(
                f"the loss became {step.loss} in epoch {position.epoch + 1}, batch {batch}. Try a lower lr (now "
                f"{config.lr}), a few epochs of warmup, or a larger lam2; an earlier checkpoint may still be good."
            )
