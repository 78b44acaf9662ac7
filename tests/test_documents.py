"""The documents cannot drift: what they name exists, and what exists and matters is named."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from service.settings import BUNDLED, ENV_PREFIX, Settings

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HOUSE_PATH = re.compile(r"`((?:model|service|training|deploy|tests|\.ci)/[\w./-]*)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
MACHINE = re.compile(r"(?:^|[^\w.-])/(?:work|farm)/|://[a-z.-]*(?:pypi|pythonhosted|debian|npmjs)\.", re.MULTILINE)
"""A path of one machine, or the address of a package registry."""


def _listed(*patterns: str) -> list[Path]:
    """Files of the repository that match, those not yet committed too."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


DOCUMENTS = _listed("*.md")
EACH_DOCUMENT = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def _anchors(document: Path) -> set[str]:
    """The names a link can jump to: each heading in lower case, spaces as hyphens, punctuation gone."""
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _resolves(link: str, base: Path) -> bool:
    name, _, anchor = link.partition("#")
    target = (base.parent / name).resolve() if name else base
    return target.exists() and (not anchor or anchor in _anchors(target))


@EACH_DOCUMENT
def test_every_link_inside_the_repository_leads_somewhere(document: Path) -> None:
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    links = [link for link in LINK.findall(text) if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in links if not _resolves(link, document)] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "DECISIONS.md", "deploy/runbook.md"])
def test_every_file_that_a_document_names_exists(name: str) -> None:
    paths = HOUSE_PATH.findall((ROOT / name).read_text(encoding="utf-8"))
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_alert_has_its_paragraph_in_the_runbook() -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        assert rule["annotations"]["runbook"] == f"deploy/runbook.md#{rule['alert'].lower()}"
        assert _resolves(rule["annotations"]["runbook"], ROOT / "README.md")


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ":".join(str(path).replace(str(BUNDLED), "service/bundled") for path in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _setting_rows() -> list[str]:
    """What the table of deploy/settings.md must hold, row by row."""
    laptop, cluster = Settings(profile="laptop"), Settings(profile="cluster")
    return [
        f"| `{ENV_PREFIX}{name.upper()}` | {_shown(getattr(laptop, name))} | {_shown(getattr(cluster, name))} "
        f"| {' '.join((field.description or '').split())} |"
        for name, field in Settings.model_fields.items()
    ]


def test_every_setting_is_documented_with_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"{ENV_PREFIX}{name.upper()}", raising=False)
    document = (ROOT / "deploy/settings.md").read_text(encoding="utf-8")
    documented = [line for line in document.splitlines() if line.startswith(f"| `{ENV_PREFIX}")]
    expected = _setting_rows()
    assert documented == expected, "deploy/settings.md must hold this table:\n" + "\n".join(expected)


def test_no_file_names_a_path_of_one_machine_or_a_package_registry() -> None:
    found = []
    for path in _listed():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in MACHINE.finditer(text)]
    assert found == []
