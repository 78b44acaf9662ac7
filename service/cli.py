"""The command `dragoman`: serve over HTTP, translate a stream of lines, or list the models.

Heavy imports stand inside the commands, so that --help answers at once.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from model.errors import ModelError
from service.errors import ServiceError, SettingsError
from service.settings import ENV_PREFIX, Settings

if TYPE_CHECKING:
    from service.lines import LineTranslator

_ENGINE_SETTINGS = (
    "precision",
    "provider",
    "operators",
    "threads",
    "max_source_tokens",
    "max_slots",
    "max_batch_tokens",
)
_SEARCH_OPTIONS: tuple[tuple[str, type, str], ...] = (
    ("coverage_penalty", float, "how much it costs to leave parts of the source out; needs a beam (default: 0)"),
    ("max_length", int, "most tokens of a sentence's translation"),
    ("min_length", int, "fewest tokens of a sentence's translation"),
    ("no_repeat_ngram", int, "no sequence of so many tokens comes twice in a sentence"),
    ("repetition_penalty", float, "1 or more: lowers what a sentence has said already"),
    ("temperature", float, "draw tokens instead of searching, at this temperature"),
    ("top_k", int, "draw among so many of the likeliest tokens; 0: among all"),
    ("top_p", float, "draw among the fewest tokens that hold this share of the probability"),
    ("seed", int, "draw with this seed (default: 0)"),
)
"""Options of a search that the command line takes too: name, type, help."""
_SAMPLING = ("temperature", "top_k", "top_p", "seed")
_SHOWN_LINES = 10

_OK, _FAILED, _BAD_USE, _INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 wrong use, 130 interrupted."""
    given = _parser().parse_args(arguments)
    try:
        return int(given.run(given))
    except (ServiceError, ModelError) as error:
        _say(f"dragoman: {error}")
        return _FAILED
    except BrokenPipeError:
        # Whoever read our output has enough. Python must not try to flush the rest into a closed pipe at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _OK
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dragoman", description="A translation service that keeps what is not language.", allow_abbrev=False
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _serve_parser(commands)
    _translate_parser(commands)
    _models_parser(commands)
    return parser


def _serve_parser(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="serve the REST API until interrupted",
        description="Serve the REST API. The address is printed once a translation has worked; Ctrl-C ends everything. "
        f"Every flag is also a variable of the environment: --max-texts is {ENV_PREFIX}MAX_TEXTS.",
        allow_abbrev=False,
    )
    _add_settings(serve, Settings.model_fields)
    serve.set_defaults(run=_serve)


def _translate_parser(commands: Any) -> None:
    translate = commands.add_parser(
        "translate",
        help="translate standard input, line for line",
        description="Translate standard input to standard output with the service's own engine, but without a server. "
        "Every line in gives one line out; input is read as it comes, so files of any size and pipes will do.",
        epilog="example: dragoman translate --source en --target de < in.txt > out.txt",
        allow_abbrev=False,
    )
    translate.add_argument("--source", required=True, metavar="CODE", help="language of the input, such as en")
    translate.add_argument("--target", required=True, metavar="CODE", help="language of the output, such as de")
    translate.add_argument(
        "--beam-size", type=int, metavar="N", help="hypotheses kept; 1 is greedy (default: the model's)"
    )
    translate.add_argument(
        "--length-penalty", type=float, metavar="A", help="higher favours longer translations (default: the model's)"
    )
    _add_search_options(translate)
    translate.add_argument(
        "--alignment",
        metavar="FILE",
        help="also write, for each line, which words became which: a JSON array of "
        "[source_start, source_end, target_start, target_end] in characters",
    )
    translate.add_argument(
        "--bundle",
        dest="bundles",
        default=argparse.SUPPRESS,
        metavar="PATH",
        help="folder or name of the model (default: the one that ships for these languages)",
    )
    _add_settings(translate, _ENGINE_SETTINGS)
    translate.set_defaults(run=_translate)


def _add_search_options(translate: argparse.ArgumentParser) -> None:
    for name, kind, text in _SEARCH_OPTIONS:
        flag = f"--{name.replace('_', '-')}"
        translate.add_argument(flag, type=kind, metavar="N" if kind is int else "X", help=text)


def _models_parser(commands: Any) -> None:
    models = commands.add_parser(
        "models",
        help="list the bundles and what they can do",
        description="List the bundles that would be served, after checking every file of theirs.",
        allow_abbrev=False,
    )
    _add_settings(models, ("bundles",))
    models.add_argument("--json", action="store_true", help="print JSON instead of a table")
    models.set_defaults(run=_models)


def _add_settings(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    group = parser.add_argument_group("settings")
    for name in names:
        setting = Settings.model_fields[name]
        # The settings themselves read and check the value; a flag only passes it on.
        group.add_argument(
            f"--{name.replace('_', '-')}",
            dest=name,
            default=argparse.SUPPRESS,
            metavar=name.rsplit("_", maxsplit=1)[-1].upper(),
            help=f"{setting.description} (default: {_shown(setting.default)})".replace("%", "%%"),
        )


def _settings(given: argparse.Namespace) -> Settings:
    return Settings.load({name: value for name, value in vars(given).items() if name in Settings.model_fields})


def _shown(default: Any) -> str:
    return "those that ship" if isinstance(default, tuple) else str(default)


def _say(message: str) -> None:
    sys.stderr.write(f"{message}\n")


def _serve(given: argparse.Namespace) -> int:
    from service.app import serve  # noqa: PLC0415

    serve(_settings(given))
    return _OK


def _translate(given: argparse.Namespace) -> int:
    from model.decode.options import Sampling  # noqa: PLC0415
    from service.lines import open_translator  # noqa: PLC0415

    names = ["beam_size", "length_penalty", *(name for name, _, _ in _SEARCH_OPTIONS)]
    options = {name: value for name in names if (value := getattr(given, name)) is not None}
    sampling = {name: options.pop(name) for name in _SAMPLING if name in options}
    if sampling:
        options["sampling"] = Sampling(**sampling)
    with _alignments(given.alignment) as alignments:
        options["alignment"] = alignments is not None
        translator = open_translator(given.source, given.target, _settings(given), **options)
        return _Pump(translator, alignments).run()


def _alignments(path: str | None) -> AbstractContextManager[TextIO | None]:
    if path is None:
        return nullcontext()
    try:
        return Path(path).open("w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"--alignment must be a file that can be written, but is {path}: {error.strerror}."
        ) from error


@dataclass(slots=True)
class _Pump:
    """Standard input to standard output; a line that failed is left blank, and named at the end."""

    translator: LineTranslator
    alignments: TextIO | None = None
    """Where the alignment of each line goes, if anywhere."""
    done: int = 0
    """Lines so far."""
    failed: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    guarded: list[int] = field(default_factory=list)

    def run(self) -> int:
        from tqdm import tqdm  # type: ignore[import-untyped]  # noqa: PLC0415

        from service.lines import chunks  # noqa: PLC0415

        with tqdm(total=_input_bytes(), unit="B", unit_scale=True, disable=None) as bar:
            for raw in chunks(sys.stdin.buffer):
                self._translate(raw, bar)
        if self.cut:
            _say(f"dragoman: the length limit ended these lines, whose end may be missing: {_numbers(self.cut)}")
        if self.guarded:
            lines = _numbers(self.guarded)
            _say(f"dragoman: these lines went round in circles or on and on, and were translated again: {lines}")
        if self.failed:
            _say(f"dragoman: these lines could not be translated and are blank: {_numbers(self.failed)}")
        return _FAILED if self.failed else _OK

    def _translate(self, raw: list[bytes], bar: Any) -> None:
        from service.lines import decoded  # noqa: PLC0415

        size, before = sum(map(len, raw)), bar.n
        lines, problem = decoded(raw, self.done + 1)
        restored = self.translator.translate(lines, lambda part: bar.update(part * size))
        for line, one in zip(lines, restored, strict=True):
            self.done += 1
            if one.refusal is not None:
                self.failed.append(self.done)
            if one.truncated:
                self.cut.append(self.done)
            if one.guarded:
                self.guarded.append(self.done)
            text = one.text if one.refusal is None else line[len(line.rstrip("\n")) :]
            sys.stdout.buffer.write(text.encode("utf-8"))
            if self.alignments:
                self.alignments.write(json.dumps(one.alignment) + "\n")
        sys.stdout.buffer.flush()
        bar.update(before + size - bar.n)
        if problem:
            raise problem  # only now: what stands before it is translated


def _input_bytes() -> int | None:
    """The size of standard input, if it is a file."""
    status = os.fstat(sys.stdin.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _numbers(lines: list[int]) -> str:
    more = f" and {len(lines) - _SHOWN_LINES} more" if len(lines) > _SHOWN_LINES else ""
    return ", ".join(map(str, lines[:_SHOWN_LINES])) + more


def _models(given: argparse.Namespace) -> int:
    from model.bundle import Bundle  # noqa: PLC0415

    found: list[dict[str, Any]] = []
    status = _OK
    for path in _settings(given).bundles:
        try:
            found.append(_description(Bundle.open(path)))
        except ModelError as error:
            status = _FAILED
            _say(f"dragoman: {error}")
    if given.json:
        sys.stdout.write(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    else:
        sys.stdout.writelines(_table(found))
    return status


def _description(bundle: Any) -> dict[str, Any]:
    from service.lines import pairs_of  # noqa: PLC0415

    manifest = bundle.manifest
    return {
        "name": manifest.name,
        "version": manifest.version,
        "pairs": [f"{pair.source}-{pair.target}" for pair in pairs_of(bundle)],
        "precisions": list(manifest.precisions),
        "beam_size": manifest.decoding.beam_size,
        "length_penalty": manifest.decoding.length_penalty,
        "megabytes": round(sum(file["bytes"] for file in manifest.files.values()) / 1e6, 1),
        "path": str(bundle.path),
    }


def _table(found: list[dict[str, Any]]) -> Iterable[str]:
    if not found:
        return
    cells = [[name.replace("_", " ") for name in found[0]]]
    cells += [[" ".join(value) if isinstance(value, list) else str(value) for value in row.values()] for row in found]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n"


if __name__ == "__main__":
    sys.exit(main())
