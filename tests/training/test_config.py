"""Settings: recipes, overrides, errors."""

import pytest

from torchscn.options import NetworkOptions
from torchscn.training.config import (
    ConfigError,
    TrainConfig,
    describe_settings,
    list_recipes,
    load_recipe,
    read_config,
)


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_makes_its_model(name):
    config = load_recipe(name)
    config.make_model(10, 3)
    config.make_augmentation()


@pytest.mark.parametrize(
    "table",
    [f"{data}-{model}" for data in ("cifar10", "cifar100") for model in ("scn1", "scn2", "scn4")]
    + ["stl10-scn4", "mnist-scn4"],
)
def test_every_row_of_the_paper_has_a_recipe(table):
    config = load_recipe(f"paper-{table}")
    assert config.preset == "authors"
    assert config.schedule == "steps"
    assert config.lr == 0.1


def test_every_setting_is_described():
    described = {entry.name: entry for entry in describe_settings()}
    assert set(described) == (set(TrainConfig.names()) | set(NetworkOptions.names())) - {"options"}
    assert all(entry.meaning and entry.group for entry in described.values())
    assert described["schedule"].choices == "cosine, onecycle, steps"
    assert (described["max_iter"].group, described["max_iter"].default) == ("model", "none")


def test_nothing_is_a_value_too(tmp_path):
    config = TrainConfig(preset="authors").override({"max_iter": "none"})
    assert config.make_model(10, 3).sparse_layers()[0][1].max_iter is None
    (tmp_path / "config.json").write_text(config.to_json())
    assert read_config(tmp_path / "config.json") == config


def test_settings_of_runs_made_before_options_had_a_table_of_their_own(tmp_path):
    (tmp_path / "config.json").write_text('{"model": "scn2", "stem": 8, "tol": null, "max_iter": null}')
    assert read_config(tmp_path / "config.json") == TrainConfig(model="scn2", stem=8)


def test_overrides_are_read_as_the_type_of_the_setting():
    config = TrainConfig().override(
        {"lr": "5e-2", "epochs": "3", "flip": "True", "milestones": "8,16", "lam2": "0.1", "batch-size": "7"}
        | {"tol": 1, "stem": "8"}
    )
    assert (config.lr, config.epochs, config.flip, config.milestones) == (0.05, 3, True, (8, 16))
    assert (config.lam2, config.batch_size, config.tol, config.stem) == (0.1, 7, 1.0, 8)


def test_json_round_trip(tmp_path):
    config = load_recipe("paper-cifar10-scn2").override({"downsample": "3,5"})
    (tmp_path / "config.json").write_text(config.to_json())
    assert read_config(tmp_path / "config.json") == config


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epocs": "3"}, ["'epocs'", "Did you mean 'epochs'"]),
        ({"epochs": "three"}, ["epochs takes a whole number", "'three'"]),
        ({"epochs": 2.5}, ["epochs takes a whole number"]),
        ({"epochs": "0"}, ["epochs", "at least 1"]),
        ({"lr": "fast"}, ["lr takes a number"]),
        ({"lr": "nan"}, ["lr"]),
        ({"flip": "maybe"}, ["flip takes true or false"]),
        ({"milestones": "1,b"}, ["separated by commas"]),
        ({"schedule": "step"}, ["Did you mean 'steps'"]),
        ({"ema": "1.0"}, ["ema must be below 1"]),
        ({"nesterov": "true", "momentum": "0"}, ["momentum"]),
        ({"early_size": "1.5"}, ["early_size must be at most 1"]),
        ({"early_size": "0"}, ["early_size", "at least 0.1"]),
        ({"early_share": "2"}, ["early_share must be at most 1"]),
        ({"max_norm": "-1"}, ["max_norm", "at least 0"]),
        ({"max_norm": "1", "unit_norm": "true"}, ["max_norm does nothing beside unit_norm"]),
        ({"alternate_flip": "true"}, ["alternate_flip needs flip"]),
        ({"alternate_flip": "true", "flip": "true", "per_image": "false"}, ["alternate_flip needs"]),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ConfigError) as caught:
        TrainConfig().override(settings)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_bad_recipes(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'digits'"):
        load_recipe("digit")
    (tmp_path / "broken.toml").write_text("lr = = 3")
    with pytest.raises(ConfigError, match="not a readable TOML file"):
        load_recipe(str(tmp_path / "broken.toml"))
    (tmp_path / "broken.toml").write_text("lr = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="not a readable TOML file"):
        load_recipe(str(tmp_path / "broken.toml"))
    (tmp_path / "broken.toml").write_text("lrr = 3")
    with pytest.raises(ConfigError, match=r"broken\.toml cannot be used: there is no setting 'lrr'"):
        load_recipe(str(tmp_path / "broken.toml"))


@pytest.mark.parametrize("spelt", ["runs/a", "runs/a/", "./runs//a"])
def test_a_start_has_one_name_however_it_is_spelt(spelt):
    assert TrainConfig(start_from=spelt) == TrainConfig(start_from="runs/a")
