"""All commands together."""

from cyclopts import App

import torchscn
from torchscn.cli import bench, data, evaluate, explore, info, inspect, predict, train

__all__ = ["app"]

app = App(
    name="scn",
    help="Deep sparse coding networks for PyTorch.",
    version=lambda: torchscn.__version__,
    suppress_keyboard_interrupt=False,  # main says that it was stopped
)
app.command(train.train)
app.command(train.recipes)
app.command(evaluate.evaluate, name="eval")
app.command(predict.predict)
app.command(explore.explore)
app.command(inspect.inspect)
app.command(data.app)
app.command(bench.bench)
app.command(info.info)
