"""Downloads are fetched once, gone on with where they broke off, and refused when they are not what they were."""

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.file_server import Site, serving
from training.corpus.downloads import DownloadStore, Patience
from training.corpus.errors import CorpusError

CONTENT = b"".join(hashlib.sha256(bytes([i])).digest() for i in range(200))
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site({"a/text.tgz": CONTENT})) as found:
        yield found


def store(tmp_path: Path, attempts: int = 3) -> DownloadStore:
    return DownloadStore(tmp_path / "cache", Patience(timeout=5.0, attempts=attempts, pause=0.0))


def test_a_file_is_fetched_once_and_its_checksum_noted(tmp_path: Path, site: Site) -> None:
    path = store(tmp_path).fetch(site.url("a/text.tgz"))
    assert (path.name, path.read_bytes()) == ("text.tgz", CONTENT)
    assert store(tmp_path).fetch(site.url("a/text.tgz"), DIGEST) == path
    assert len(site.asked) == 1
    record = json.loads((path.parent / "text.tgz.json").read_text())
    assert record == {"url": site.url("a/text.tgz"), "bytes": len(CONTENT), "sha256": DIGEST}
    assert sorted(file.name for file in path.parent.iterdir()) == ["text.tgz", "text.tgz.json"]


def test_files_of_one_name_from_two_addresses_are_kept_apart(tmp_path: Path, site: Site) -> None:
    site.files["b/text.tgz"] = b"another"
    assert store(tmp_path).fetch(site.url("a/text.tgz")).read_bytes() == CONTENT
    assert store(tmp_path).fetch(site.url("b/text.tgz")).read_bytes() == b"another"


def test_a_download_that_breaks_off_goes_on_where_it_stopped(tmp_path: Path, site: Site) -> None:
    site.cut_after = 1000
    assert store(tmp_path).fetch(site.url("a/text.tgz"), DIGEST).read_bytes() == CONTENT
    assert site.asked == ["", *(f"bytes={start}-" for start in range(1000, len(CONTENT), 1000))]


def test_what_one_call_began_the_next_one_ends(tmp_path: Path, site: Site) -> None:
    site.cut_after = 4000
    real, site.files["a/text.tgz"] = site.answer, CONTENT
    site.answer = lambda handler: real(handler) if not site.asked else handler.send_error(503)  # type: ignore[method-assign]
    with pytest.raises(CorpusError, match=r"4,000 bytes are kept, and the next call goes on.*https_proxy"):
        store(tmp_path).fetch(site.url("a/text.tgz"))
    site.answer = real  # type: ignore[method-assign]
    assert store(tmp_path).fetch(site.url("a/text.tgz"), DIGEST).read_bytes() == CONTENT
    assert site.asked == ["", "bytes=4000-"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_part_of_a_file_that_has_changed_since_is_thrown_away(tmp_path: Path, site: Site, ranges: bool) -> None:
    """Whether the server would go on in the middle or not: halves of two files make no file."""
    site.cut_after = 4000
    with pytest.raises(CorpusError, match="bytes are kept"):
        DownloadStore(tmp_path / "cache", Patience(attempts=0, pause=0.0)).fetch(site.url("a/text.tgz"))
    site.files["a/text.tgz"], site.cut_after, site.ranges = CONTENT[::-1], None, ranges
    assert store(tmp_path).fetch(site.url("a/text.tgz")).read_bytes() == CONTENT[::-1]


def test_a_part_that_is_longer_than_the_file_begins_anew(tmp_path: Path, site: Site) -> None:
    url = site.url("a/text.tgz")
    path = store(tmp_path)._place(url)
    path.parent.mkdir(parents=True)
    path.with_name("text.tgz.part").write_bytes(CONTENT + b"more")
    path.with_name("text.tgz.part.etag").write_text(f'"{hash(CONTENT)}"')
    assert store(tmp_path).fetch(url, DIGEST) == path
    assert site.asked == [f"bytes={len(CONTENT) + 4}-", ""]


def test_another_checksum_than_the_recipes_is_refused(tmp_path: Path, site: Site) -> None:
    with pytest.raises(CorpusError, match=f"must have the SHA-256 {'0' * 64}, but .* has {DIGEST}; delete that file"):
        store(tmp_path).fetch(site.url("a/text.tgz"), "0" * 64)


def test_a_file_that_is_no_longer_what_was_first_fetched_is_refused(tmp_path: Path, site: Site) -> None:
    path = store(tmp_path).fetch(site.url("a/text.tgz"))
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(CorpusError, match=r"must be what was first fetched .* 6,400 bytes .* but has 6,399"):
        store(tmp_path).fetch(site.url("a/text.tgz"))
    path.unlink()
    site.files["a/text.tgz"] = CONTENT[::-1]
    with pytest.raises(CorpusError, match=r"text\.tgz\.json too if the change is meant"):
        store(tmp_path).fetch(site.url("a/text.tgz"))
    path.unlink()
    path.with_name("text.tgz.json").unlink()
    assert store(tmp_path).fetch(site.url("a/text.tgz")).read_bytes() == CONTENT[::-1]


def test_a_file_that_is_not_there_says_so_at_once(tmp_path: Path, site: Site) -> None:
    with pytest.raises(CorpusError, match=r"the server says 404 .*; correct the address .*, or put the file at"):
        store(tmp_path).fetch(site.url("a/none.tgz"))
    assert len(site.asked) == 1


def test_a_server_that_says_nothing_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/text.tgz"
        began = time.monotonic()
        with pytest.raises(CorpusError, match="timed out"):
            DownloadStore(tmp_path, Patience(timeout=0.2, attempts=2, pause=0.0)).fetch(url)
        assert time.monotonic() - began < 5


def test_a_file_of_this_machine_is_fetched_too(tmp_path: Path) -> None:
    (tmp_path / "text.tgz").write_bytes(CONTENT)
    assert store(tmp_path).fetch((tmp_path / "text.tgz").as_uri(), DIGEST).read_bytes() == CONTENT
    with pytest.raises(CorpusError, match=r"none\.tgz could not be downloaded"):
        store(tmp_path, attempts=1).fetch((tmp_path / "none.tgz").as_uri())


@pytest.mark.parametrize("url", ["ftp://example.org/x.tgz", "https://example.org/", "x.tgz"])
def test_an_address_must_name_a_file_by_a_known_way(tmp_path: Path, url: str) -> None:
    with pytest.raises(CorpusError, match="a url must name a file by https, http, file"):
        store(tmp_path).fetch(url)


def test_a_download_goes_through_the_proxy_of_the_environment(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy is asked for the whole address; this one has something else there."""
    site.files["http://text.invalid/text.tgz"] = b"by proxy"
    monkeypatch.setenv("http_proxy", site.address)
    monkeypatch.setenv("no_proxy", "")
    assert store(tmp_path).fetch("http://text.invalid/text.tgz").read_bytes() == b"by proxy"
