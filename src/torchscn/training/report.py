"""What a person sees of a run: a progress bar, one line per epoch, warnings, a picture at the end."""

from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from torchscn.certificates import LayerCertificate
from torchscn.training.config import TrainConfig
from torchscn.training.curves import draw_curves
from torchscn.training.run_folder import RunFolder

if TYPE_CHECKING:
    from torchscn.training.loop import Position

__all__ = ["Reporter"]


class Reporter:
    """Reports the progress of a run; if quiet, it only writes the picture and the event files.

    Args:
        run: the folder for these files.
        config: settings of the run.
        is_main: whether this is the process that prints and writes for all.
        quiet: print nothing.
    """

    def __init__(self, run: RunFolder, config: TrainConfig, *, is_main: bool, quiet: bool):
        quiet = quiet or not is_main
        self.run, self.config = run, config
        self.console = Console(quiet=quiet, soft_wrap=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}  {task.fields[now]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=quiet or not self.console.is_terminal,
        )
        self.task: TaskID | None = None
        self.events = _event_writer(run) if config.tensorboard and is_main else None

    def __enter__(self) -> "Reporter":
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
        if self.events is not None:
            self.events.close()

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", style="yellow", highlight=False, markup=False)

    def step(self, position: "Position", n_batches: int, world_size: int) -> None:
        """Advance the bar: loss, error and speed of the epoch so far, time left until the end of the run."""
        done = position.epoch * n_batches + position.batch
        if self.task is None:
            self.task = self.progress.add_task("", total=self.config.epochs * n_batches, completed=done - 1, now="")
        speed = world_size * position.n_seen / max(position.seconds, 1e-9)
        error = 100 * position.n_wrong / position.n_seen
        self.progress.update(
            self.task,
            completed=done,
            description=f"epoch {position.epoch + 1}/{self.config.epochs}",
            now=f"loss {position.loss_sum / position.n_seen:.3f}  error {error:.1f}%  {speed:.0f} images/s",
        )

    def epoch(self, entry: dict[str, Any], certificates: list[LayerCertificate]) -> None:
        """Print one line for the epoch, and a warning for every layer whose codes are not as they should be.

        Args:
            entry: its metrics.
            certificates: of the layers, if it was tested.
        """
        sweeps = [c.iterations for c in certificates]
        codes = [c.active for c in certificates]
        layers = ""
        if certificates:
            layers = (
                f"  iterations {min(sweeps):.1f}-{max(sweeps):.1f}  active {100 * sum(codes) / len(codes):.0f}%"
                f"  residual {max(c.residual for c in certificates):.0e}"
            )
        test = f"test error {entry['test_error']:5.2f}%  " if "test_error" in entry else ""
        self.say(
            f"epoch {entry['epoch']:3d}/{self.config.epochs}  train loss {entry['train_loss']:.4f} "
            f"error {entry['train_error']:5.2f}%  {test}{entry['images_per_second']:.0f} images/s{layers}"
        )
        for certificate in certificates:
            if certificate.converged is not None and not certificate.is_sound:
                self.warn(
                    f"layer {certificate.name} does not converge: {100 * (1 - certificate.converged):.1f}% of its "
                    "codes miss the tolerance; raise max_iter or lam2, or use solver='auto'."
                )
            if certificate.dead > 0.5:
                self.warn(
                    f"layer {certificate.name}: {100 * certificate.dead:.0f}% of its atoms are used by no patch; a "
                    f"lower weight_decay or lam1 (now {certificate.lam1:.3g}) may revive them."
                )
        if self.events is not None:
            for name, value in entry.items():
                if isinstance(value, (int, float)):
                    self.events.add_scalar(name, value, entry["epoch"])
            for certificate in certificates:
                for name in ("iterations", "residual", "active", "dead", "lam1"):
                    self.events.add_scalar(f"{name}/{certificate.name}", getattr(certificate, name), entry["epoch"])

    def finish(self, metrics: list[dict[str, Any]]) -> None:
        """Draw the picture, and say where everything is."""
        drawn = draw_curves(self.run.curves, metrics, title=f"{self.config.model} on {self.config.data}")
        if metrics and "test_error" in metrics[-1]:  # a damaged record may have lost the last epoch
            error = metrics[-1]["test_error"]
            self.say(f"final test error {error:.2f}%, accuracy {100 - error:.2f}%")
        self.say(f"run folder {self.run.path}" + ("" if drawn else " (no picture: pip install torchscn[plot])"))


def _event_writer(run: RunFolder) -> Any:
    """A TensorBoard writer."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError("tensorboard=true needs TensorBoard: pip install torchscn[tensorboard]") from error
    return SummaryWriter(str(run.path))
