"""The picture of a run's curves."""

import json
from pathlib import Path

from PIL import Image

from training.curves import draw_curves, read_curves
from training.journal import LOG


def write(folder: Path, *events: dict[str, object]) -> Path:
    (folder / LOG).write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    return folder


def event(update: int, kind: str, **values: object) -> dict[str, object]:
    return {"update": update, "time": 0.0, "kind": kind, **values}


def test_an_update_that_was_done_again_after_a_resume_counts_once_with_its_last_value(tmp_path: Path) -> None:
    run = write(tmp_path, event(20, "train", nll=5.0), event(40, "train", nll=4.0), event(40, "train", nll=3.5))
    assert read_curves(run / LOG)["nll"]["train"] == [(20, 5.0), (40, 3.5)]


def test_text_in_the_log_is_no_curve(tmp_path: Path) -> None:
    run = write(tmp_path, event(20, "dev.help", nll=2.0, bleu=11.0, bleu_signature="nrefs:1"))
    assert set(read_curves(run / LOG)) == {"nll", "bleu"}


def test_the_picture_shows_more_ink_when_there_is_more_to_show(tmp_path: Path) -> None:
    def ink(*events: dict[str, object]) -> int:
        picture = Image.open(draw_curves(write(tmp_path, *events))).convert("L")
        return sum(picture.histogram()[:200])

    empty = ink()
    one = ink(*(event(n, "train", nll=5.0 / n, learning_rate=n / 9) for n in range(1, 9)))
    assert empty < one < ink(*(event(n, k, nll=5.0 / n, bleu=n) for n in range(1, 9) for k in ("train", "dev.a")))
