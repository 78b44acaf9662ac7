"""What was kept, what was dropped, and why: as JSON and as text for people."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.corpus.pair import Pair

_EXAMPLES = 5
_EXAMPLES_TITLE = "Examples of what was dropped"


@dataclass
class Tally:
    """Counts of one reason to drop, by origin, and the first few examples of it."""

    why: str
    counts: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, pair: Pair) -> None:
        """Count `pair`; keep it as an example if there are not enough from its origin."""
        self.counts[pair.origin] += 1
        if self.counts[pair.origin] <= _EXAMPLES:
            self.examples.append((pair.origin, pair.source[:200], pair.target[:200]))


@dataclass
class CorpusReport:
    """Everything `build_corpus` has to say about a corpus."""

    languages: tuple[str, str]
    read: Counter[str] = field(default_factory=Counter)
    """Raw pairs, by origin."""
    dropped: dict[str, Tally] = field(default_factory=dict)
    """Reason → tally, in the order in which the steps drop."""
    sets: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Name of a written set, such as `train` or `test.help` → pairs by origin."""
    source_words: Counter[str] = field(default_factory=Counter)
    """Name of a written set → words on the source side, by white space."""
    target_words: Counter[str] = field(default_factory=Counter)
    sources: list[dict[str, Any]] = field(default_factory=list)
    """One entry a package or file: its licence, attribution and number of training pairs."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know, such as a source that was not there."""

    def drop(self, reason: str, why: str, pair: Pair) -> None:
        """Count `pair` as dropped for `reason`."""
        self.dropped.setdefault(reason, Tally(why)).add(pair)

    def count_set(self, name: str, pairs: Iterable[Pair]) -> None:
        """Count the pairs and words of a written set."""
        counts = self.sets[name]
        for pair in pairs:
            counts[pair.origin] += 1
            self.source_words[name] += len(pair.source.split())
            self.target_words[name] += len(pair.target.split())

    def to_dict(self) -> dict[str, Any]:
        """All of it but the sources, ready for JSON."""
        return {
            "languages": list(self.languages),
            "read": dict(self.read),
            "dropped": {
                reason: {
                    "why": tally.why,
                    "total": tally.counts.total(),
                    "by_source": dict(tally.counts),
                    "examples": [{"from": o, "source": s, "target": t} for o, s, t in tally.examples],
                }
                for reason, tally in self.dropped.items()
            },
            "sets": {
                name: {
                    "pairs": counts.total(),
                    "source_words": self.source_words[name],
                    "target_words": self.target_words[name],
                    "by_source": dict(counts),
                }
                for name, counts in self.sets.items()
            },
            "notes": self.notes,
        }

    def to_text(self) -> str:
        """A page to read: tables first, then examples of what was dropped."""
        lines = [f"Corpus {self.languages[0]} → {self.languages[1]}", "", "Read"]
        lines += [f"  {count:>9,}  {origin}" for origin, count in self.read.items()]
        lines += [f"  {self.read.total():>9,}  in all", "", "Dropped"]
        lines += [f"  {t.counts.total():>9,}  {reason}: {t.why}" for reason, t in self.dropped.items()]
        lines += ["", "Written (pairs, source words, target words)"]
        lines += [
            f"  {counts.total():>9,} {self.source_words[name]:>11,} {self.target_words[name]:>11,}  {name}"
            + (f" ({', '.join(f'{o} {n:,}' for o, n in counts.items())})" if len(counts) > 1 else "")
            for name, counts in self.sets.items()
        ]
        lines += ["", *(f"Note: {note}" for note in self.notes)] if self.notes else []
        lines += ["", _EXAMPLES_TITLE]
        for reason, tally in self.dropped.items():
            lines.append(f"  {reason}")
            lines += [f"    [{o}] {_one_line(s)}  →  {_one_line(t)}" for o, s, t in tally.examples]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> None:
        """Write sources.json, report.txt and, as the mark of a finished corpus, report.json into `folder`."""
        _write_json(folder / "sources.json", self.sources)
        (folder / "report.txt").write_text(self.to_text(), encoding="utf-8")
        # In one step: half of it would be taken for the mark.
        whole, part = folder / "report.json", folder / "report.partial"
        _write_json(part, self.to_dict())
        part.replace(whole)

    def __str__(self) -> str:
        """The tables alone."""
        return self.to_text().partition(_EXAMPLES_TITLE)[0].rstrip()


def _one_line(text: str) -> str:
    return text.encode("unicode_escape").decode() if not text.isprintable() else text


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
