"""`dragoman-train`: corpus → tokenizer → fit → publish → evaluate; and distil, from a bundle to another corpus."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from model.bundle import Bundle
from model.decode.options import DecodeOptions
from model.errors import BundleError, ModelError
from model.runtime.sessions import OperatorChoice, RuntimeOptions
from model.runtime.stepper import open_stepper
from training.checkpoint import CheckpointError
from training.corpus.build import DEFAULT_CACHE, build_corpus
from training.corpus.errors import CorpusError
from training.corpus.recipe import load_recipe
from training.distil import Job, distil
from training.evaluate import (
    TestSet,
    Translator,
    as_json,
    corpus_test_sets,
    evaluate,
    folder_test_sets,
    table,
)
from training.fit import RunFolder, TextRecipe, fit
from training.journal import last_speed
from training.publish import Run, publish
from training.recipe import (
    FitRecipe,
    NoiseRecipe,
    ProtectRecipe,
    PublishRecipe,
    RecipeError,
    languages,
    read_recipe,
    section,
)
from training.scores import ScoreError
from training.subwords import SubwordOptions, extend_subwords, train_subwords
from training.teacher import DistilRecipe, Teacher
from training.trainer import DivergenceError
from training.weights import source_weights

_EXPECTED = (ModelError, RecipeError, CorpusError, CheckpointError, DivergenceError, ScoreError)
_TOKENIZER = "tokenizer.model"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step; returns the exit status. Expected errors are one line on standard error."""
    options = _parser().parse_args(arguments)
    try:
        options.run_step(options)
    except (*_EXPECTED, OSError) as error:  # OSError: a folder that cannot be written, a full disk
        print(f"dragoman-train: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dragoman-train: interrupted; `fit` and `distil` go on where they were.", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dragoman-train",
        description="Make a translation model from parallel text: corpus, tokenizer, fit, publish, evaluate, in turn.",
    )
    steps = parser.add_subparsers(title="steps", required=True, metavar="STEP")
    _corpus_parser(steps)
    _tokenizer_parser(steps)
    _fit_parser(steps)
    _publish_parser(steps)
    _evaluate_parser(steps)
    _distil_parser(steps)
    return parser


def _step(steps: argparse._SubParsersAction, name: str, what: str, run: object) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    parser: argparse.ArgumentParser = steps.add_parser(
        name, help=what, description=what, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.set_defaults(run_step=run)
    return parser


def _recipe_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recipe", type=Path, required=True, help="TOML file; see training/recipes")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change one value of the recipe"
    )


def _corpus_parser(steps: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _step(steps, "corpus", "Collect, clean and split parallel text.", _corpus)
    _recipe_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder of the corpus")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where downloaded packages are kept")


def _tokenizer_parser(steps: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _step(steps, "tokenizer", "Train one subword vocabulary for both languages.", _tokenizer)
    _recipe_arguments(parser)
    parser.add_argument("--corpus", type=Path, required=True, help=f"folder of the corpus; {_TOKENIZER} goes there")
    parser.add_argument(
        "--extend",
        type=Path,
        metavar="FILE",
        help="take this vocabulary and give it sentinels, instead of training one",
    )


def _fit_parser(steps: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _step(steps, "fit", "Train a network, going on where an earlier call stopped.", _fit)
    _recipe_arguments(parser)
    parser.add_argument("--corpus", type=Path, required=True, help="folder of the corpus and its tokenizer")
    parser.add_argument("--run", type=Path, required=True, help="folder of checkpoints and logs")
    parser.add_argument(
        "--from", dest="start", type=Path, metavar="BUNDLE", help="begin with the weights of this bundle or run"
    )


def _publish_parser(steps: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _step(steps, "publish", "Average, export, prove, score and write a bundle.", _publish)
    _recipe_arguments(parser)
    parser.add_argument("--run", type=Path, required=True, help="folder of a run")
    parser.add_argument("--out", type=Path, required=True, help="folder of the bundle; replaced if it exists")
    _test_argument(parser)


def _evaluate_parser(steps: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _step(steps, "evaluate", "Score a bundle as it will be served.", _evaluate)
    parser.add_argument("--bundle", type=Path, required=True, help="folder of the bundle")
    parser.add_argument("--corpus", type=Path, help="score every test set of this corpus")
    _test_argument(parser)
    parser.add_argument("--precision", help="int8 or f32; the first of the bundle if not given")
    parser.add_argument(
        "--operators", choices=get_args(OperatorChoice), default="auto", help="auto: native where they can run"
    )
    parser.add_argument("--beam-size", type=int, help="the bundle's own if not given")
    parser.add_argument("--length-penalty", type=float, help="the bundle's own if not given")
    parser.add_argument("--coverage-penalty", type=float, default=0.0, help="cost of leaving parts of a source out")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--outputs", type=Path, help="also write NAME.TARGET translations to this folder")


def _distil_parser(steps: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _step(steps, "distil", "Let a bundle translate a corpus anew, for a smaller network to learn.", _distil)
    _recipe_arguments(parser)
    parser.add_argument("--bundle", type=Path, required=True, help="folder of the teacher")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of the corpus that it translates")
    parser.add_argument(
        "--sources", type=Path, action="append", default=[], metavar="FILE", help="also this text, a line each"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the new corpus; an interrupted one goes on")
    parser.add_argument("--precision", help="int8 or f32; the first of the bundle if not given")


def _test_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--test", type=Path, action="append", default=[], help="also score each NAME.SOURCE, NAME.TARGET of this folder"
    )


def _corpus(options: argparse.Namespace) -> None:
    report = build_corpus(
        load_recipe(options.recipe, options.set), options.out, cache=options.cache, progress=sys.stderr.isatty()
    )
    _say(report.to_text())


def _tokenizer(options: argparse.Namespace) -> None:
    values = read_recipe(options.recipe, options.set)
    asked = section(SubwordOptions, "tokenizer", values.get("tokenizer", {}))
    out = options.corpus / _TOKENIZER
    if options.extend:
        reports = extend_subwords(options.extend, options.corpus, out)
    else:
        reports = train_subwords(options.corpus, out, asked)
    for name, report in reports.items():
        _say(f"{name}: {report}")


def _fit(options: argparse.Namespace) -> None:
    values = read_recipe(options.recipe, options.set)
    recipe = section(FitRecipe, "fit", values.get("fit", {}))
    folder = RunFolder(options.corpus, options.corpus / _TOKENIZER, options.run, languages(values), options.start)
    text = TextRecipe(
        section(ProtectRecipe, "protect", values.get("protect", {})),
        section(NoiseRecipe, "noise", values.get("noise", {})),
        source_weights(values),
    )
    at = fit(values.get("model", {}), recipe, folder, text)
    early = "" if at.update >= recipe.updates else f"; ended early, for {at.stale} validations were no better"
    _say(f"{at.update:,} updates, {at.target_tokens:,} target tokens, epoch {at.epoch}; {at.skipped} skipped{early}")
    if speed := last_speed(options.run):
        _say(speed)


def _publish(options: argparse.Namespace) -> None:
    values = read_recipe(options.recipe, options.set)
    recipe = section(PublishRecipe, "publish", values.get("publish", {}))
    run = Run.open(options.run)
    tests = [*corpus_test_sets(run.corpus, run.languages), *_folders(options.test, run.languages)]
    published = publish(run, recipe, options.out, tests)
    manifest = published.bundle.manifest
    _say(f"graphs against network\n{published.parity}\n")
    _say(f"{published.bundle.path} holds {manifest.name} {manifest.version}")
    if published.evaluations:
        _say(f"\n{table(published.evaluations)}")


def _evaluate(options: argparse.Namespace) -> None:
    bundle = Bundle.open(options.bundle)
    manifest = bundle.manifest
    pair = (manifest.source_languages[0], manifest.target_languages[0])
    tests = [*_of_corpus(options.corpus, pair), *_folders(options.test, pair)]
    if not tests:
        raise ScoreError("there must be something to score, but nothing was named; give --corpus or --test.")
    asked = DecodeOptions(
        beam_size=manifest.decoding.beam_size if options.beam_size is None else options.beam_size,
        length_penalty=manifest.decoding.length_penalty if options.length_penalty is None else options.length_penalty,
        coverage_penalty=options.coverage_penalty,
    )
    precision = options.precision or next(iter(manifest.precisions))
    if asked.coverage_penalty and not bundle.attends(precision):
        raise BundleError(
            f"--coverage-penalty needs an attending decoder, but {bundle.path} has none; publish it again."
        )
    stepper = open_stepper(bundle, precision, RuntimeOptions(operators=options.operators))
    translator = Translator(stepper, bundle.tokenizer(), asked)
    evaluations = [evaluate(translator, test) for test in tests]
    if options.json:
        options.json.write_text(json.dumps(as_json(evaluations), indent=2) + "\n", encoding="utf-8")
    if options.outputs:
        options.outputs.mkdir(parents=True, exist_ok=True)
        for found in evaluations:
            text = "".join(f"{output}\n" for output in found.outputs)
            (options.outputs / f"{found.name}.{pair[1]}").write_text(text, encoding="utf-8")
    print(f"{precision} graphs with {stepper.operators} operators", file=sys.stderr)
    _say(table(evaluations))


def _distil(options: argparse.Namespace) -> None:
    recipe = section(DistilRecipe, "distil", read_recipe(options.recipe, options.set).get("distil", {}))
    bundle = Bundle.open(options.bundle)
    precision = options.precision or next(iter(bundle.manifest.precisions))
    corpus_recipe = load_recipe(options.recipe, options.set)
    pair, known = (corpus_recipe.source, corpus_recipe.target), bundle.manifest
    if pair[0] not in known.source_languages or pair[1] not in known.target_languages:
        raise BundleError(f"the teacher must translate {pair[0]} to {pair[1]}, but {bundle.path} does not.")
    job = Job(options.bundle, options.corpus, tuple(options.sources), options.out, recipe, corpus_recipe)
    report = distil(job, Teacher(open_stepper(bundle, precision), bundle.tokenizer(), recipe, pair[1]))
    _say(report.to_text())


def _of_corpus(corpus: Path | None, pair: tuple[str, str]) -> list[TestSet]:
    """The test sets of a corpus that was asked for, which must have some."""
    if corpus is None:
        return []
    if found := corpus_test_sets(corpus, pair):
        return found
    raise ScoreError(f"--corpus must name a corpus with {pair[0]} to {pair[1]} test sets, but {corpus} has none.")


def _folders(folders: Sequence[Path], pair: tuple[str, str]) -> list[TestSet]:
    return [test for folder in folders for test in folder_test_sets(folder, pair)]


def _say(text: str) -> None:
    print(text)


if __name__ == "__main__":
    raise SystemExit(main())
