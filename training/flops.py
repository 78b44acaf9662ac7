"""What training computes: the floating-point operations of a network's matrix products, and what a device could do.

Utilisation (MFU; Chowdhery et al., 2022, appendix B) is the operations that the real tokens need, a second, over the
device's peak: padding, recomputation and whatever else a loop does beside them count as nothing.
"""

from __future__ import annotations

import re

import numpy as np
import torch
from numpy.typing import ArrayLike

from model.config import ModelConfig

_PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}
"""Part of a device's name → products in bf16, sums in float32, without sparsity, a second: the makers' data sheets."""


def training_flops(config: ModelConfig, sources: ArrayLike, targets: ArrayLike) -> float:
    """Operations of forward and backward for pairs of so many source tokens (B) and target tokens (B), EOS counted.

    A multiplication and an addition are two. Backward has two products for each one of forward. Only products of
    matrices count; norms, softmax and optimiser are small beside them.
    """
    x, y = np.asarray(sources, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    d, inner = config.d_model, config.d_ff * (3 if config.gated else 2)
    # Weights that every token of a side meets, and the two products of attention for every pair of tokens.
    encoder = config.encoder_layers * (x.sum() * d * (4 * d + inner) + 2 * (x * x).sum() * d)
    own = y.sum() * d * (4 * d + inner) + 2 * (y * y).sum() * d
    cross = y.sum() * 2 * d * d + x.sum() * 2 * d * d + 2 * (x * y).sum() * d
    decoder = config.decoder_layers * (own + cross)
    projection = y.sum() * d * config.vocab_size
    return float(3 * 2 * (encoder + decoder + projection))


def peak_flops(device: torch.device, precision: str, given: float = 0.0) -> float:
    """Operations a second that `device` could do at most; `given` if that is not 0, and 0 for a device not known."""
    if given or device.type != "cuda" or precision != "bf16":
        return given
    name = torch.cuda.get_device_name(device)
    known = (peak for part, peak in _PEAKS.items() if re.search(rf"\b{re.escape(part)}(?![0-9A-Za-z])", name))
    return next(known, 0.0)
