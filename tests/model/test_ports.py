"""The port sheet, and what happens to a graph that does not follow it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model.errors import BundleError
from model.ports import Port, PortSheet, check_ports, decoder_ports, encoder_ports, port_sheet
from tests.model.networks import tiny_config

CONFIG = tiny_config()


def test_the_encoder_gives_what_every_decoder_layer_reads_from_the_source():
    given = encoder_ports(CONFIG).outputs
    taken = tuple(port for port in decoder_ports(CONFIG).inputs if port.name.startswith("cross_"))
    assert given == taken
    assert len(given) == 2 * CONFIG.decoder_layers


def test_the_decoder_is_told_where_each_source_ends_and_each_row_stands():
    names = [port.name for port in decoder_ports(CONFIG).inputs]
    assert {"source_lengths", "positions", "write_index", "visible", "k"} <= set(names)


def test_every_cache_input_has_an_output_of_the_same_shape():
    sheet = decoder_ports(CONFIG)
    past = {port.name.removeprefix("past_"): port.axes for port in sheet.inputs if port.name.startswith("past_")}
    present = {port.name.removeprefix("present_"): port.axes for port in sheet.outputs if "present_" in port.name}
    assert past == present
    assert len(past) == 2 * CONFIG.decoder_layers


@pytest.mark.parametrize("role", ["encoder", "decoder"])
def test_a_graph_that_follows_the_sheet_passes(role):
    check_ports(port_sheet(role, CONFIG), port_sheet(role, CONFIG), "graph.onnx")


def _without_last(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    return ports[:-1]


def _renamed(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    return (replace(ports[0], name="other"), *ports[1:])


def _retyped(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    return (replace(ports[0], dtype="int32"), *ports[1:])


def _reshaped(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    return (replace(ports[0], axes=("rows", 7)), *ports[1:])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_without_last, "is missing"),
        (_renamed, "is unknown"),
        (_retyped, "should be"),
        (_reshaped, "should be"),
        (lambda ports: ports[::-1], "come in the order"),
    ],
)
@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_a_graph_with_other_ports_is_refused_with_both_versions_named(change, says, side):
    sheet = decoder_ports(CONFIG)
    found = replace(sheet, **{side: change(getattr(sheet, side))})
    with pytest.raises(BundleError, match=says) as caught:
        check_ports(sheet, found, "decoder.onnx")
    assert "decoder.onnx" in str(caught.value)
    assert "publish" in str(caught.value)


def test_a_graph_of_another_configuration_is_refused():
    other = decoder_ports(tiny_config(heads=8))
    assert isinstance(other, PortSheet)
    with pytest.raises(BundleError, match=r"past_key_0.*should be"):
        check_ports(decoder_ports(CONFIG), other, "decoder.onnx")
