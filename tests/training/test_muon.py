"""Our Muon is torch's, and treats many matrices as it treats each."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from training.muon import Muon, orthogonalise
from training.processes import Processes

SHAPES = [(8, 8), (16, 8), (8, 16), (8, 8), (16, 8)]


def matrices(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-6), (torch.float32, 0.05)])
def test_updates_are_torch_s_updates_but_for_the_rounding_of_bfloat16(dtype: torch.dtype, tolerance: float) -> None:
    mine, other = ([matrix.clone().requires_grad_() for matrix in matrices(1)] for _ in range(2))
    ours = Muon(mine, dtype)
    theirs = torch.optim.Muon(other, lr=0.0, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for step in range(4):
        for optimizer, parameters in ((ours, mine), (theirs, other)):
            optimizer.param_groups[0]["lr"] = 0.01 * (step + 1)
            for parameter, gradient in zip(parameters, matrices(step + 2), strict=True):
                parameter.grad = gradient
            optimizer.step()
    for before, one, two in zip(matrices(1), mine, other, strict=True):
        moved = (two - before).norm().item()
        assert moved > 0.05
        assert (one - two).norm().item() <= tolerance * moved


@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 16, 8), (3, 8, 16)])
def test_singular_values_become_about_one_and_their_vectors_stay(shape: tuple[int, int, int]) -> None:
    found = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    left, _, right = torch.linalg.svd(found, full_matrices=False)
    turned = left.transpose(1, 2) @ orthogonalise(found, torch.float32) @ right.transpose(1, 2)  # -> (3, 8, 8)
    values = turned.diagonal(dim1=1, dim2=2)
    assert values.min() > 0.5
    assert values.max() < 1.3
    assert (turned - torch.diag_embed(values)).abs().max() < 1e-3


def test_a_matrix_is_treated_alike_alone_and_among_others() -> None:
    many = torch.stack([matrix for matrix in matrices(3) if matrix.shape == (8, 8)])
    together = orthogonalise(many, torch.float32)
    for matrix, among_others in zip(many, together, strict=True):
        torch.testing.assert_close(orthogonalise(matrix[None], torch.float32)[0], among_others)


def test_matrices_without_a_gradient_stay() -> None:
    matrix = torch.ones(8, 8, requires_grad=True)
    Muon([matrix], torch.float32).step()
    assert torch.equal(matrix, torch.ones(8, 8))


def test_a_gradient_of_zero_moves_nothing() -> None:
    matrix = torch.ones(8, 8, requires_grad=True)
    optimizer = Muon([matrix], torch.float32)
    optimizer.param_groups[0]["lr"] = 1.0
    matrix.grad = torch.zeros(8, 8)
    optimizer.step()
    assert torch.equal(matrix, torch.ones(8, 8))


class Overheard(Processes):
    """Processes that do not meet: what this one would have told the others is kept."""

    told: list[torch.Tensor]

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        self.told = [tensor.clone() for tensor in tensors]


def test_every_matrix_is_orthogonalised_by_one_process_alone() -> None:
    told = []
    for processes in (Overheard(), Overheard(0, 2), Overheard(1, 2)):
        parameters = [matrix.requires_grad_() for matrix in matrices(1)]
        for parameter, gradient in zip(parameters, matrices(2), strict=True):
            parameter.grad = gradient
        Muon(parameters, torch.float32, processes).step()
        told.append(processes.told)
    alone, first, second = told
    shares = [(bool(one.any()), bool(other.any())) for one, other in zip(first, second, strict=True)]
    assert shares.count((True, False)) == 3  # of three shapes; two of them have a second matrix
    assert shares.count((False, True)) == 2
    for one, other, whole in zip(first, second, alone, strict=True):
        torch.testing.assert_close(one + other, whole)
