"""Files from the web: fetched once, gone on with where a download broke off, and refused when they have changed.

Beside a file lies its record, `NAME.json`, with its address, size and SHA-256. A file that is fetched again must be the
file of the record, so a corpus of today is the corpus of last year. Proxies are those of the environment
(`https_proxy`, `no_proxy`).
"""

from __future__ import annotations

import hashlib
import json
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from tqdm import tqdm

from model.bundle import sha256
from training.corpus.errors import CorpusError

_CHUNK = 1 << 20
_SCHEMES = ("https", "http", "file")


class _InterruptedError(Exception):
    """The connection ended before the file did."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a server is waited for."""

    timeout: float = 60.0
    """Seconds without a byte after which a connection counts as dead."""
    attempts: int = 5
    """Connections in a row that may fail without a byte more before the download is given up."""
    pause: float = 2.0
    """Seconds between two of them."""


@dataclass(frozen=True)
class DownloadStore:
    """A folder of downloaded files, so that a rebuild downloads nothing."""

    cache: Path
    patience: Patience = field(default_factory=Patience)
    progress: bool = False

    def fetch(self, url: str, digest: str = "") -> Path:
        """The file at `url`, from the cache if it is there. Its SHA-256 must be `digest`, if that is given.

        Raises `CorpusError` when it cannot be had, or is another one than it must be or was before.
        """
        path = self._place(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = path.with_name(path.name + ".json")
        if not path.is_file():
            self._download(url, path)
        found = {"url": url, "bytes": path.stat().st_size, "sha256": sha256(path)}
        if digest and found["sha256"] != digest:
            raise CorpusError(
                f"{url} must have the SHA-256 {digest}, but {path} has {found['sha256']}; delete that file to fetch "
                f"it again, or give the recipe the new digest if the change is meant."
            )
        if not record.is_file():
            record.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        elif (known := json.loads(record.read_text(encoding="utf-8"))) != found:
            raise CorpusError(
                f"{path} must be what was first fetched from {url}, {known['bytes']:,} bytes with SHA-256 "
                f"{known['sha256']}, but has {found['bytes']:,} and {found['sha256']}; delete it to fetch it again, "
                f"and {record.name} too if the change is meant."
            )
        return path

    def _place(self, url: str) -> Path:
        """Where `url` is kept: files of one name from several addresses lie in folders of their own."""
        parts = urlsplit(url)
        name = Path(unquote(parts.path)).name
        if parts.scheme not in _SCHEMES or not name:
            raise CorpusError(f"a url must name a file by {', '.join(_SCHEMES)}, but is {url!r}.")
        return self.cache / hashlib.sha256(url.encode()).hexdigest()[:12] / name

    def _download(self, url: str, path: Path) -> None:
        part = path.with_name(path.name + ".part")
        failures = 0
        while True:
            before = _size(part)
            try:
                self._go_on(url, part)
                break
            except urllib.error.HTTPError as error:
                error.close()
                if error.code < HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise _refused(url, path, error) from error
                reason: Exception = error
            except (OSError, HTTPException, _InterruptedError) as error:
                reason = error
            failures = 0 if _size(part) > before else failures + 1
            if failures >= self.patience.attempts:
                raise CorpusError(
                    f"{url} could not be downloaded: {reason}. {_size(part):,} bytes are kept, and the next call goes "
                    f"on from there; check the network and the proxy (https_proxy), or put the file at {path}."
                ) from reason
            time.sleep(self.patience.pause)
        part.replace(path)
        _validator(part).unlink(missing_ok=True)

    def _go_on(self, url: str, part: Path) -> None:
        """One connection: what is still missing of `part`, or all of it if the server has another file by now."""
        start, known = _size(part), _validator(part)
        headers = {"User-Agent": "dragoman-train", "Accept-Encoding": "identity"}
        if start and known.is_file():
            headers |= {"Range": f"bytes={start}-", "If-Range": known.read_text(encoding="utf-8")}
        request = urllib.request.Request(url, headers=headers)
        try:
            answer = urllib.request.build_opener().open(request, timeout=self.patience.timeout)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
                error.close()
                part.unlink()
                raise _InterruptedError("the kept part does not belong to the file") from error
            raise
        with answer:
            if getattr(answer, "status", None) != HTTPStatus.PARTIAL_CONTENT:
                start = 0
            _note_state(known, answer.headers.get("ETag", ""), answer.headers.get("Last-Modified", ""))
            length = answer.headers.get("Content-Length")
            self._write(answer, part, start, None if length is None else start + int(length))

    def _write(self, answer: IO[bytes], part: Path, start: int, total: int | None) -> None:
        bar: Any = tqdm(
            desc=part.stem,
            total=total,
            initial=start,
            unit="B",
            unit_scale=True,
            disable=None if self.progress else True,
        )
        with part.open("r+b" if start else "wb") as file, bar:
            file.truncate(start)
            file.seek(start)
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
        if total is not None and _size(part) < total:
            raise _InterruptedError(f"the connection ended after {_size(part):,} of {total:,} bytes")


def _validator(part: Path) -> Path:
    """Beside the part of a file: the mark by which the server knows which state of the file it is of."""
    return part.with_name(part.name + ".etag")


def _note_state(known: Path, tag: str, date: str) -> None:
    """Keep what names the state of the file on the server; not a weak tag, which may stay when bytes change."""
    state = date if not tag or tag.startswith("W/") else tag
    if state:
        known.write_text(state, encoding="utf-8")
    else:
        known.unlink(missing_ok=True)


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _refused(url: str, path: Path, error: urllib.error.HTTPError) -> CorpusError:
    return CorpusError(
        f"{url} must be there to be downloaded, but the server says {error.code} {error.reason}; correct the address "
        f"in the recipe, or put the file at {path}."
    )
