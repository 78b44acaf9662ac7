"""A bundle's weights, read back from its graphs."""

from pathlib import Path

import numpy as np
import pytest
import torch

from model.bundle import Bundle
from model.config import ModelConfig, preset
from model.export.exporter import export_graphs
from model.export.quantisation import quantise_weight
from model.export.recover import recover_state_dict
from model.nn.transformer import Transformer
from model.ports import Precision

SHIPPED = Path(__file__).parents[2] / "service" / "bundled" / "en-de"
SIZES = {"d_model": 32, "heads": 2, "d_ff": 64, "encoder_layers": 2, "decoder_layers": 2}


class Exported:
    """What `recover_state_dict` needs of a bundle."""

    def __init__(self, config: ModelConfig, weights: dict[str, torch.Tensor], folder: Path, kind: Precision) -> None:
        self.config = config
        self.manifest = self
        record = export_graphs(config, weights, folder, [kind], [([4, 5, 6, 2], [7, 8, 2])])
        self.precisions, self.graph_paths = record.precisions, record.graph_paths


@pytest.mark.parametrize(
    "choices",
    [{}, {"tie_embeddings": False, "norm_order": "post"}, {"gated": True, "positions": "learned"}],
    ids=["small", "paper", "gated"],
)
def test_float32_weights_come_back_as_they_were(tmp_path: Path, choices: dict[str, object]) -> None:
    config = preset("small", 50, **SIZES, **choices)
    weights = Transformer(config).state_dict()
    found = recover_state_dict(Exported(config, weights, tmp_path, "f32"))  # type: ignore[arg-type]
    assert found.keys() == weights.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, weights[name].numpy(), rtol=1e-6, err_msg=name)


def test_int8_weights_come_back_to_the_rounding_of_their_bytes(tmp_path: Path) -> None:
    config = preset("small", 50, **SIZES)
    weights = Transformer(config).state_dict()
    found = recover_state_dict(Exported(config, weights, tmp_path, "int8"))  # type: ignore[arg-type]
    for name, value in found.items():
        wanted = weights[name].numpy()
        if "embedding" in name:
            np.testing.assert_allclose(value, wanted, rtol=1e-3, atol=1e-6, err_msg=name)
        elif name.endswith("weight") and ".norm" not in name:
            steps = quantise_weight(wanted)[1][:, None]
            assert (np.abs(value - wanted) <= 0.501 * steps).all(), name
        else:
            np.testing.assert_allclose(value, wanted, rtol=1e-6, err_msg=name)


def test_the_shipped_bundle_can_be_trained_further() -> None:
    bundle = Bundle.open(SHIPPED)
    Transformer(bundle.config).load_state_dict({k: torch.from_numpy(v) for k, v in recover_state_dict(bundle).items()})
