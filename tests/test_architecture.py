"""The house is as drawn: who imports whom, where each library lives, how large a room may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("model", "service", "training")
MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 60

GROUND = (
    "model.bundle model.config model.errors model.ports model.protection model.protection_patterns model.spans "
    "model.tokenizer"
)
"""The ground floor of `model`: what both sides of a bundle know."""

MAY_IMPORT = {
    "model": GROUND,
    "model.decode": f"{GROUND} model.decode",
    "model.nn": "model.config model.nn",
    "model.runtime": f"{GROUND} model.decode model.runtime",
    "model.export": f"{GROUND} model.decode model.export model.nn model.runtime",
    "training": "model training",
    "service": "",
    "service.jobs": "model.decode.options",
    "service.languages": "service.errors",
    "service.settings": "service.errors",
    "service.metrics": "service.errors service.languages service.metrics",
    "service.text": "model.carrying model.errors model.protection model.protection_patterns model.spans "
    "model.tokenizer service.errors service.jobs service.text",
    "service.engine": f"{GROUND} model.decode model.runtime service.engine service.errors service.jobs service.metrics "
    "service.settings",
    "service.api": "model.decode.options model.errors service.api service.errors service.languages service.metrics "
    "service.settings",
    "service.replica": "service.metrics",
    "service.ingress": f"{GROUND} model.decode.options service.api service.errors service.ingress service.jobs "
    "service.languages service.logs service.metrics service.replica service.settings service.text",
    "service.translator": "model.bundle service.engine service.errors service.jobs service.logs service.metrics "
    "service.replica service.settings",
    "service.child": "model.bundle service.engine service.errors service.jobs service.logs service.metrics",
    "service.whole": "model.bundle service.engine service.ingress service.metrics service.replica service.settings",
    "service.local": "service.engine.cpus service.errors service.settings",
    "service.lines": f"{GROUND} model.decode model.runtime service.engine service.errors service.jobs "
    "service.languages service.settings service.text",
    "service.app": "model service",
    "service.cli": "model service",
}
"""Room → rooms of ours it may import. The longest matching room speaks for a module; a room covers what lies in it."""

LIVES_IN = {
    "torch": "model.nn model.export training",
    "onnx": "model.export",
    "onnxruntime": "model.runtime",
    "numpy": "model service.engine training",
    "sentencepiece": "model.tokenizer training.subwords",
    "ray": "service.app service.ingress service.local service.replica service.translator",
    "fastapi": "service.api",
    "starlette": "service.api",
    "uvicorn": "service.ingress",
    "pydantic": "service.api service.settings",
    "pydantic_settings": "service.settings",
    "prometheus_client": "service.metrics",
    "tqdm": "service.cli training",
    "sacrebleu": "training",
    "tensorboard": "training",
    "matplotlib": "training",
    "polib": "training.corpus",
    "zstandard": "training.corpus",
}
"""Third-party library → the rooms it lives in. A library that is not listed lives nowhere."""


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


def _modules() -> Iterator[Module]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield Module(name, path, ast.parse(path.read_text(encoding="utf-8"), str(path)))


MODULES = {module.name: module for module in _modules()}
EACH_MODULE = pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())


def _imports(module: Module) -> set[str]:
    """Every module that `module` names in an import, wherever the import stands."""
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.path}:{node.lineno}: imports are absolute here."
            # `from a import b` names the module a.b where there is one, and a otherwise.
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in names}
    return found


def _within(name: str, rooms: str) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms.split())


def _law_for(name: str) -> str:
    """What the longest room of the table that holds `name` may import."""
    rooms = [room for room in MAY_IMPORT if _within(name, room)]
    assert rooms, f"{name} stands in no room; give it a line in MAY_IMPORT."
    return MAY_IMPORT[max(rooms, key=len)]


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in PACKAGES


@EACH_MODULE
def test_a_room_imports_only_the_rooms_it_may(module: Module) -> None:
    law = _law_for(module.name)
    found = sorted(name for name in _imports(module) if _is_ours(name) and not _within(name, law))
    assert not found, f"{module.name} imports {', '.join(found)}, but may import only: {law or 'none of ours'}."


@EACH_MODULE
def test_each_library_stays_in_its_home(module: Module) -> None:
    for name in _imports(module):
        library = name.partition(".")[0]
        if library in sys.stdlib_module_names or _is_ours(name):
            continue
        home = LIVES_IN.get(library)
        assert home is not None, f"{module.name} imports {library}, which has no home; give it a line in LIVES_IN."
        assert _within(module.name, home), f"{module.name} imports {library}, which lives in: {home}."


def test_no_import_goes_round() -> None:
    graph = {name: {other for other in _imports(module) if other in MODULES} for name, module in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imports go round: {' → '.join(error.args[1])}")


def test_both_tables_name_only_rooms_that_exist() -> None:
    named = {room for rooms in (*MAY_IMPORT.values(), *LIVES_IN.values(), *MAY_IMPORT) for room in rooms.split()}
    assert not sorted(named - MODULES.keys())


@EACH_MODULE
def test_a_package_holds_a_docstring_and_nothing_else(module: Module) -> None:
    assert ast.get_docstring(module.tree), f"{module.path} must say what the room is for."
    if module.is_package:
        assert len(module.tree.body) == 1, f"{module.path} must hold only its docstring."


@EACH_MODULE
def test_every_file_and_function_is_small_enough_to_read(module: Module) -> None:
    lines = len(module.path.read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_FILE_LINES, f"{module.path} has {lines} lines; at most {MOST_FILE_LINES}."
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            where = f"{module.path}:{node.lineno} {node.name}"
            assert length <= MOST_FUNCTION_LINES, f"{where} has {length} lines; at most {MOST_FUNCTION_LINES}."


def test_the_tests_folder_holds_no_packages() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py")), "tests/model/__init__.py would hide the package model."


@pytest.mark.parametrize("entry", ["service.app", "service.cli"])
def test_serving_leaves_torch_and_training_alone(entry: str) -> None:
    heavy = ("torch", "onnx", "training", "tensorboard", "sacrebleu", "matplotlib")
    code = f"import sys, {entry}; print(*(name for name in {heavy!r} if name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []
