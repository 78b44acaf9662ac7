"""Where a process trains: the processor, or the CUDA device that is its own."""

from __future__ import annotations

import os

import torch

from training.recipe import FitRecipe, RecipeError


def training_device(asked: str) -> torch.device:
    """The device for `[fit] device`; with several processes on one machine each has its own, by LOCAL_RANK.

    Raises `RecipeError` when CUDA is asked for and not there (a silent run on the processor would take weeks), and when
    there are more processes than devices.
    """
    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise RecipeError("[fit] device is cuda, but torch finds none; install a CUDA build or say cpu or auto.")
    if asked == "cpu" or not there:
        return torch.device("cpu")
    if "LOCAL_RANK" not in os.environ:
        return torch.device("cuda", torch.cuda.current_device())
    number, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= count:
        raise RecipeError(
            f"every process must have a CUDA device of its own, but process {number} finds {count}; start as many "
            "processes as there are devices."
        )
    return torch.device("cuda", number)


def compiles(recipe: FitRecipe, device: torch.device) -> bool:
    """Whether the network is compiled: where it pays unless the recipe says otherwise."""
    return recipe.compile == "always" or (recipe.compile == "auto" and device.type == "cuda")
