"""Training: settings, loop, checkpoints, evaluation. :func:`fit` is the loop, :func:`train` fills it from settings."""

from torchscn.training.certificates import LayerCertificate, certify, spread_sample
from torchscn.training.checkpoint import CheckpointError
from torchscn.training.config import ConfigError, TrainConfig, list_recipes, load_recipe
from torchscn.training.distributed import Process, start_process
from torchscn.training.evaluation import Evaluation, evaluate
from torchscn.training.loop import DivergenceError, Interrupted, TrainResult, evaluation_batches, fit, load_data, train
from torchscn.training.run_folder import TrainedModel, load_trained

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DivergenceError",
    "Evaluation",
    "Interrupted",
    "LayerCertificate",
    "Process",
    "TrainConfig",
    "TrainResult",
    "TrainedModel",
    "certify",
    "evaluate",
    "evaluation_batches",
    "fit",
    "list_recipes",
    "load_data",
    "load_recipe",
    "load_trained",
    "spread_sample",
    "start_process",
    "train",
]
