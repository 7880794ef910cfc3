"""Errors for bad input: numbers, choices, registries."""

import numpy as np
import pytest

from torchscn.checks import Registry, check_choice, check_number, printable


@pytest.mark.parametrize("value", [0, 3, 2.5, np.float32(1), np.int64(4)])
def test_numbers(value):
    check_number("it", value, at_least=0)


@pytest.mark.parametrize(
    ("value", "whole", "error"),
    [
        (-1, False, ValueError),
        (float("inf"), False, ValueError),
        (True, False, TypeError),
        ("1", False, TypeError),
        (2.5, True, TypeError),
        (None, True, TypeError),
    ],
)
def test_bad_numbers_name_what_they_are(value, whole, error):
    with pytest.raises(error, match="it must be"):
        check_number("it", value, at_least=0, whole=whole)


def test_choices():
    check_choice("it", "a", "ab")
    with pytest.raises(ValueError, match="it='c' is not known; choose from 'a', 'b'"):
        check_choice("it", "c", "ab")


def test_a_registry_knows_what_was_registered():
    registry: Registry[int] = Registry("number")
    assert registry.register("one")(1) == 1
    assert registry["one"] == 1
    assert registry.get("two") is None
    with pytest.raises(ValueError, match=r"number='won' is not known; choose from 'one'\. Did you mean 'one'"):
        registry["won"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cat", "cat"),
        ("Käse 猫", "Käse 猫"),
        ("\x1b[31mcat", "\\x1b[31mcat"),
        ("a\nb\rc\td\0", "a\\nb\\rc\\td\\x00"),
        ("\x9b2J", "\\x9b2J"),  # the one-byte form of the escape
        ("evil\u202egnp.exe", "evil\\u202egnp.exe"),  # would be shown from right to left
        ("\ud800", "\\ud800"),  # cannot be encoded
        ("", ""),
    ],
)
def test_names_are_shown_harmlessly(text, shown):
    assert printable(text) == shown
