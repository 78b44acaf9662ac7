"""The artifact folder: written whole or not at all, and read only as it was written."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from model.bundle import (
    FORMAT_VERSION,
    MANIFEST,
    TOKENIZER,
    Bundle,
    BundleContents,
    DecodingDefaults,
    sha256,
    write_bundle,
)
from model.errors import BundleError
from model.runtime.stepper import open_stepper
from tests.model.networks import exported, tiny_config, train_tokenizer

VARIANT = "tied"
GRAPHS = {"encoder": "encoder.int8.onnx", "decoder": "decoder.int8.onnx"}


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> BundleContents:
    made = exported(VARIANT)
    return BundleContents(
        name="en-de",
        version="1",
        source_languages=("en",),
        target_languages=("de",),
        config=made.config,
        precisions=made.record.precisions,
        weights=made.record.weights,
        graph_files=made.record.files,
        tokenizer=train_tokenizer(tmp_path_factory.mktemp("tokenizer"), made.config.vocab_size),
        model_card="# en-de\n",
        decoding=DecodingDefaults(beam_size=2, length_penalty=1.0),
        calibration=made.record.calibration,
        parity={"f32": {"values": {"log_prob": 1e-6}}},
    )


@pytest.fixture
def folder(contents: BundleContents, tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "en-de", contents).path


def change_manifest(folder: Path, **values: object) -> None:
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_what_was_written_is_read(folder, contents):
    bundle = Bundle.open(folder)
    assert bundle.config == contents.config
    assert bundle.manifest.source_languages == ("en",)
    assert bundle.manifest.decoding == DecodingDefaults(beam_size=2, length_penalty=1.0)
    assert bundle.manifest.calibration == contents.calibration
    assert bundle.tokenizer().vocab_size == contents.config.vocab_size
    assert bundle.graph_paths("int8")["stock"]["decoder"].name == "decoder.int8.onnx"
    assert set(bundle.manifest.files) == {path.name for path in folder.iterdir()} - {MANIFEST}


def test_a_bundle_runs(folder):
    bundle = Bundle.open(folder)
    stepper = open_stepper(bundle, "int8")
    slots = stepper.start([bundle.tokenizer().encode("Ask at the desk on floor two.")], 1)
    log_probs, ids = stepper.step(slots, [[bundle.config.bos_id]], 3)
    assert log_probs.shape == ids.shape == (1, 1, 3)
    assert stepper.provider == "cpu"


def test_an_unknown_precision_is_refused_with_those_there_are(folder):
    with pytest.raises(BundleError, match=r"f32, int8.*'f16'"):
        Bundle.open(folder).graph_paths("f16")


@pytest.mark.parametrize("name", ["decoder.int8.onnx", "weights.int8.bin", TOKENIZER, "MODEL_CARD.md"])
def test_a_missing_file_stops_the_opening(folder, name):
    (folder / name).unlink()
    with pytest.raises(BundleError, match=f"{name}, but it is missing"):
        Bundle.open(folder)


def test_a_renamed_file_is_a_missing_file(folder):
    (folder / "decoder.int8.onnx").rename(folder / "decoder.onnx")
    with pytest.raises(BundleError, match=r"decoder\.int8\.onnx, but it is missing"):
        Bundle.open(folder)


def test_a_shortened_file_stops_the_opening_even_without_hashing(folder):
    path = folder / "encoder.f32.onnx"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"encoder\.f32\.onnx must have \d+ bytes"):
        Bundle.open(folder, verify=False)


def test_a_single_damaged_byte_is_found(folder):
    path = folder / "encoder.f32.onnx"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleError, match="SHA-256"):
        Bundle.open(folder)
    Bundle.open(folder, verify=False)


def test_a_picture_belongs_to_the_bundle_like_any_other_file(contents, tmp_path):
    picture = tmp_path / "curves.png"
    picture.write_bytes(b"a picture")
    bundle = write_bundle(tmp_path / "en-de", replace(contents, pictures=(picture,)))
    assert bundle.manifest.files["curves.png"]["bytes"] == 9
    (bundle.path / "curves.png").write_bytes(b"a Picture")
    with pytest.raises(BundleError, match=r"curves\.png must have the SHA-256"):
        Bundle.open(bundle.path)


@pytest.mark.parametrize("name", [TOKENIZER, "MODEL_CARD.md", "none.png"])
def test_a_picture_takes_the_place_of_no_other_file(contents, tmp_path, name):
    if name != "none.png":
        (tmp_path / name).write_bytes(b"a picture")
    with pytest.raises(BundleError, match="a picture must be a file with a name of its own"):
        write_bundle(tmp_path / "en-de", replace(contents, pictures=(tmp_path / name,)))
    assert not (tmp_path / "en-de").exists()


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path):
    with pytest.raises(BundleError, match="is this the right folder"):
        Bundle.open(tmp_path)


def test_another_format_version_is_refused_before_anything_else_is_read(folder):
    change_manifest(folder, format_version=FORMAT_VERSION + 1, something="new")
    with pytest.raises(BundleError, match=rf"up to {FORMAT_VERSION}, but has {FORMAT_VERSION + 1}"):
        Bundle.open(folder)


def test_a_bundle_of_format_1_is_read_and_runs(folder):
    """It had its constants inside its graphs, and the two graphs of a precision directly below it."""
    precisions = json.loads((folder / MANIFEST).read_text())["precisions"]
    for roles in (graphs["stock"] for graphs in precisions.values()):
        for name in roles.values():
            onnx.save_model(onnx.load(folder / name), folder / name)
    (folder / "weights.int8.bin").unlink()
    listed = {
        name: {"sha256": sha256(folder / name), "bytes": (folder / name).stat().st_size}
        for name in [*precisions["int8"]["stock"].values(), TOKENIZER]
    }
    change_manifest(folder, format_version=1, precisions={"int8": precisions["int8"]["stock"]}, files=listed)
    values = json.loads((folder / MANIFEST).read_text())
    del values["weights"]
    (folder / MANIFEST).write_text(json.dumps(values))
    bundle = Bundle.open(folder)
    assert list(bundle.graph_paths("int8")) == ["stock"]
    stepper = open_stepper(bundle, "int8")
    assert stepper.operators == "stock"
    log_probs, _ = stepper.step(stepper.start([[5, 6, 2]], 1), [[bundle.config.bos_id]], 3)
    fresh = exported(VARIANT).stepper("int8")
    expected, _ = fresh.step(fresh.start([[5, 6, 2]], 1), [[bundle.config.bos_id]], 3)
    assert log_probs.tolist() == expected.tolist()


@pytest.mark.parametrize("precisions", [["int8"], {"int8": "decoder.onnx"}, {"int8": {"encoder": "encoder.int8.onnx"}}])
def test_a_manifest_of_format_1_that_contradicts_itself_is_refused_too(folder, precisions):
    change_manifest(folder, format_version=1, precisions=precisions)
    with pytest.raises(BundleError, match="precision"):
        Bundle.open(folder)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "must be JSON"),
        ("[]", "format_version"),
        ('{"name": "x"}', "format_version"),
        (f'{{"format_version": {FORMAT_VERSION}}}', "every field"),
    ],
)
def test_a_manifest_that_is_none_is_refused(folder, text, says):
    (folder / MANIFEST).write_text(text)
    with pytest.raises(BundleError, match=says):
        Bundle.open(folder)


def test_a_manifest_that_is_not_text_is_refused(folder):
    (folder / MANIFEST).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BundleError, match="readable text"):
        Bundle.open(folder)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"surprise": 1}, "surprise"),
        ({"model": {"vocab_size": 384, "heads": 5, "d_model": 32}}, "multiple of heads"),
        ({"model": {"vocab_size": "many"}}, "describe a model"),
        ({"precisions": {}}, "at least one precision"),
        (
            {"precisions": {"int8": {"stock": {"encoder": "encoder.int8.onnx"}}}},
            "must have the graphs encoder, decoder",
        ),
        ({"precisions": {"int8": {"stock": {"encoder": "a.onnx", "decoder": "b.onnx"}}}, "weights": {}}, "list every"),
        ({"precisions": {"int8": {"native": GRAPHS}}}, "must have graphs with the operators stock"),
        ({"precisions": {"f16": {"stock": GRAPHS}}}, "must have graphs with the operators cuda"),
        ({"precisions": {"int8": {"stock": GRAPHS, "faster": GRAPHS}}}, "but has stock, faster"),
        ({"precisions": {"int8": {"stock": GRAPHS, "native": {}}}}, "with native operators"),
        ({"precisions": {"int8": {}}}, "but has none"),
        ({"precisions": ["int8"]}, "precisions in"),
        ({"precisions": {"int8": "decoder.onnx"}}, "precisions in"),
        ({"precisions": {"int8": GRAPHS}}, "precisions in"),
        ({"weights": {"int8": "elsewhere.bin"}}, "list every file it uses"),
        ({"weights": {"f16": "weights.int8.bin"}}, r"not \['f16'\] do"),
        ({"weights": ["weights.int8.bin"]}, "weights in"),
        ({"files": {"decoder.int8.onnx": 5}}, "files in"),
        ({"source_languages": 5}, "every field"),
        ({"decoding": {"beam": 4}}, "every field"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(folder, values, says):
    change_manifest(folder, **values)
    with pytest.raises(BundleError, match=says):
        Bundle.open(folder)


def test_a_manifest_cannot_point_out_of_its_folder(folder):
    files = json.loads((folder / MANIFEST).read_text())["files"]
    change_manifest(folder, files={**files, "../secret": {"sha256": "", "bytes": 0}})
    with pytest.raises(BundleError, match="lie in it directly"):
        Bundle.open(folder)


def test_a_tokenizer_with_other_ids_than_the_embedding_is_refused_with_both_numbers(contents, tmp_path):
    other = train_tokenizer(tmp_path, 380)
    with pytest.raises(BundleError, match=r"has 380 and the model 384; no row is added"):
        write_bundle(tmp_path / "en-de", replace(contents, tokenizer=other))
    assert not (tmp_path / "en-de").exists()


def test_a_tokenizer_swapped_later_is_refused_with_both_numbers(folder, tmp_path):
    shutil.copyfile(train_tokenizer(tmp_path, 380), folder / TOKENIZER)
    with pytest.raises(BundleError, match=TOKENIZER):
        Bundle.open(folder)
    size = (folder / TOKENIZER).stat().st_size
    files = json.loads((folder / MANIFEST).read_text())["files"]
    change_manifest(folder, files={**files, TOKENIZER: {"sha256": "", "bytes": size}})
    with pytest.raises(BundleError, match="380 and the model 384"):
        Bundle.open(folder, verify=False).tokenizer()


def test_a_bundle_is_replaced_as_a_whole(folder, contents):
    (folder / "stray").write_text("left over")
    bundle = write_bundle(folder, replace(contents, version="2"))
    assert bundle.manifest.version == "2"
    assert not (folder / "stray").exists()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_writing_that_fails_leaves_what_was_there_and_nothing_else(folder, contents, tmp_path):
    with pytest.raises(BundleError, match="export it first"):
        write_bundle(folder, replace(contents, version="2", graph_files=(tmp_path / "gone.onnx",)))
    assert Bundle.open(folder).manifest.version == "1"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_bundle_comes_back_if_its_successor_cannot_take_its_place(folder, contents, monkeypatch):
    def rename(self: Path, target: Path, rename=Path.rename) -> Path:
        if self.name == "new":
            raise PermissionError("not here")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(PermissionError):
        write_bundle(folder, replace(contents, version="2"))
    assert Bundle.open(folder).manifest.version == "1"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_contents_that_do_not_name_their_graphs_are_not_written(contents, tmp_path):
    with pytest.raises(BundleError, match="list every file"):
        write_bundle(tmp_path / "en-de", replace(contents, graph_files=contents.graph_files[1:]))
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_for_another_configuration_stops_at_the_ports(contents, tmp_path):
    wrong = replace(contents, config=tiny_config(heads=8))
    bundle = write_bundle(tmp_path / "en-de", wrong)
    with pytest.raises(BundleError, match="port sheet"):
        open_stepper(bundle, "f32")
