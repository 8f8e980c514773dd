# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import bz2
import gzip
import hashlib
import re
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedac.data import load
from fedac.data.registry import EMBEDDED, SOURCES, Source, describe, fetch, find
from fedac.errors import DataError, InputError
from fedac.objectives import LogisticRegression
from fedac.paths import cache_dir

TEXT = b"".join(b"%d %d:1\n" % (i % 2, 1 + i % 5) for i in range(60_000))
SHA = hashlib.sha256(TEXT).hexdigest()
TOY = Source("toy", "toy", 60_000, 5, "for tests", sha256=SHA)


class Server(ThreadingHTTPServer):
    """Serves TEXT; can break off the first answers and ignore ranges."""

    def __init__(self, cuts=0, ranges=True, status=200):
        super().__init__(("127.0.0.1", 0), Handler)
        self.cuts, self.ranges, self.status = cuts, ranges, status
        self.asked: list[str | None] = []
        self.site = f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        if self.server.status != 200:
            return self.send_error(self.server.status)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and self.server.ranges else 0
        if start >= len(TEXT):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(TEXT)}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        body = TEXT[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.cuts:
            self.server.cuts -= 1
            body = body[: len(body) // 2]
        return self.wfile.write(body)

    def log_message(self, *_args):
        pass


@pytest.fixture
def serve():
    servers = []

    def serve(**kwargs) -> Server:
        server = Server(**kwargs)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """Return the data folder of an empty cache."""
    monkeypatch.setenv("FEDAC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDAC_DATA", raising=False)
    return tmp_path / "cache" / "data"


@pytest.fixture
def register(monkeypatch):
    def register(**changes) -> Source:
        source = replace(TOY, **changes)
        monkeypatch.setitem(SOURCES, "toy", source)
        return source

    return register


def refused(action, *parts):
    with pytest.raises(DataError) as caught:
        action("toy")
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cache_dir_is_the_users_unless_set(monkeypatch):
    monkeypatch.setenv("FEDAC_CACHE", "somewhere")
    assert cache_dir() == Path("somewhere")
    monkeypatch.delenv("FEDAC_CACHE")
    assert "fedac" in str(cache_dir())


def test_fetch_downloads_once(cache, serve, register, capfd):
    server = serve()
    register(site=server.site)
    assert fetch("toy") == fetch("toy") == find("toy") == cache / "toy"
    assert (cache / "toy").read_bytes() == TEXT
    assert [path.name for path in cache.iterdir()] == ["toy"]
    assert len(server.asked) == 1
    assert capfd.readouterr() == ("", "")  # no progress bar without a terminal


def test_load_downloads_and_checks_the_shape(cache, serve, register):
    register(site=serve().site)
    data = load("toy")
    assert (data.name, data.n_samples, data.n_features) == ("toy", 60_000, 5)
    register(n_samples=7)
    refused(load, "has 60000 rows but toy has 7", f"delete {cache / 'toy'}")
    register(n_features=4)
    refused(
        load,
        "line 5: '5:1': the feature index must be a whole number from 1 to 4",
        f"delete {cache / 'toy'}",
    )


def test_a_broken_download_is_resumed(cache, serve, register):
    server = serve(cuts=1)
    register(site=server.site)
    refused(
        fetch,
        f"cannot download {server.site}toy: ",
        "the connection was lost",
        "the next attempt resumes the download",
        f"put the file at {cache / 'toy'} or in the folder $FEDAC_DATA",
    )
    assert [path.name for path in cache.iterdir()] == ["toy.part"]
    part = (cache / "toy.part").read_bytes()
    assert part
    assert TEXT.startswith(part)
    assert fetch("toy").read_bytes() == TEXT
    assert server.asked == [None, f"bytes={len(part)}-"]
    assert [path.name for path in cache.iterdir()] == ["toy"]


def test_a_server_without_ranges_starts_over(cache, serve, register):
    server = serve(cuts=1, ranges=False)
    register(site=server.site)
    refused(fetch, "the connection was lost")
    assert fetch("toy").read_bytes() == TEXT
    assert server.asked[1] is not None


@pytest.mark.parametrize("surplus", [b"", b"more"])
def test_a_partial_file_that_is_complete_or_too_long(cache, serve, register, surplus):
    register(site=serve().site)
    cache.mkdir(parents=True)
    (cache / "toy.part").write_bytes(TEXT + surplus)
    assert fetch("toy").read_bytes() == TEXT


def test_no_network(cache, serve, register):
    server = serve()
    register(site=server.site)
    server.shutdown()
    server.server_close()  # the port is closed now
    where = f"put the file at {cache / 'toy'} or in the folder $FEDAC_DATA"
    refused(fetch, f"cannot download {server.site}toy: the server cannot be reached", where)
    (cache / "toy.part").write_bytes(TEXT[:9])
    refused(fetch, "the next attempt resumes the download")
    assert (cache / "toy.part").read_bytes() == TEXT[:9]


def test_a_missing_page(cache, serve, register):
    register(site=serve(status=404).site)
    refused(fetch, "the server answered 404 Not Found")


def test_a_cache_that_cannot_be_written(cache, serve, register):
    register(site=serve().site)
    cache.parent.write_text("a file where the folder should be")
    refused(fetch, "cannot download")


def test_a_wrong_download_is_not_kept(cache, serve, register):
    wrong = "0" * 64
    register(site=serve().site, sha256=wrong)
    refused(fetch, wrong, SHA)
    assert list(cache.iterdir()) == []


def test_an_unknown_checksum_is_recorded_at_the_download(cache, serve, register):
    register(site=serve().site, sha256=None)
    path = fetch("toy")
    assert (cache / "toy.sha256").read_text() == f"{SHA}  toy\n"
    assert load("toy").n_samples == 60_000
    path.write_bytes(TEXT[:-4])
    refused(load, f"{path} is damaged: expected sha256 {SHA}, got ", "fedac data fetch toy")


def test_fedac_data_comes_first_and_may_lack_a_file(cache, register, tmp_path, monkeypatch):
    register(site="http://127.0.0.1:1/")
    given = tmp_path / "given"
    for folder in (given, cache):
        folder.mkdir(parents=True)
    monkeypatch.setenv("FEDAC_DATA", str(given))
    refused(find, f"no toy in {given} or {cache}", "'fedac data fetch toy'")
    (cache / "toy").write_bytes(TEXT)
    assert find("toy") == cache / "toy"
    (given / "toy").write_bytes(TEXT)
    assert find("toy") == given / "toy"
    (given / "toy").write_bytes(b"1 1:1\n")
    refused(load, f"{given / 'toy'} is damaged", SHA)


def test_a_file_in_another_compression_is_accepted(cache, register):
    register(file="toy.xz", sha256="of the .xz file")
    cache.mkdir(parents=True)
    (cache / "toy.bz2").write_bytes(bz2.compress(TEXT))
    assert load("toy").n_samples == 60_000
    (cache / "toy").write_bytes(TEXT)
    assert find("toy") == cache / "toy"


def test_load_of_paths_and_unknown_names(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_bytes(TEXT)
    assert load("mine").name == load("./mine").name == load(Path("mine")).name == "mine"
    for path in ("folder/gone", "data/gone.txt", "gone.txt", "a9a.bz2"):
        with pytest.raises(DataError, match=f"{path} cannot be read: No such file"):
            load(path)
    with pytest.raises(DataError, match="a9a cannot be read: No such file"):
        load("./a9a")
    with pytest.raises(InputError, match="unknown data set 'a9b'; did you mean 'a9a'"):
        load("a9b")
    for name in ("", "x" * 5000):
        with pytest.raises(InputError, match="unknown data set"):
            load(name)
    with pytest.raises(InputError, match="unknown data set 'synthetic'"):
        fetch("synthetic")


def test_describe_says_where_each_set_is(cache, register):
    register()
    cache.mkdir(parents=True)
    (cache / "w8a").touch()
    where = {source.name: where for source, where in describe()}
    assert where["synthetic"] == where["synthetic-dense"] == "generated"
    assert where["w8a"] == str(cache / "w8a")
    assert where["a9a"] == "embedded"
    assert where["toy"] == "not here"


def test_generated_sets_have_the_shape_that_is_listed():
    for source, where in describe():
        if where == "generated":
            assert load(source.name).X.shape == (source.n_samples, source.n_features)


def test_records_are_consistent():
    for name, source in SOURCES.items():
        assert name == source.name
        assert source.sha256 is None or re.fullmatch("[0-9a-f]{64}", source.sha256)


def test_a9a_is_embedded(cache, tmp_path, monkeypatch):
    embedded = load("a9a")
    text = bz2.decompress(find("a9a").read_bytes())
    assert hashlib.sha256(text).hexdigest() == SOURCES["a9a"].sha256
    (tmp_path / "a9a").write_bytes(text)
    monkeypatch.setenv("FEDAC_DATA", str(tmp_path))
    assert find("a9a") == tmp_path / "a9a"
    one, other = (LogisticRegression(data.X, data.y) for data in (embedded, load("a9a")))
    assert one.fingerprint() == other.fingerprint()


def test_the_license_of_embedded_data_is_named(cache):
    readme = (EMBEDDED / "README.md").read_text()
    embedded = [source for source, where in describe() if where == "embedded"]
    assert {"a9a", "digits", "breast-cancer", "diabetes"} == {each.name for each in embedded}
    for path in EMBEDDED.iterdir():
        assert path.name in readme or path.name == "README.md"
    assert readme.count("License: ") >= 3


def test_an_empty_fedac_data_counts_as_unset(cache, tmp_path, monkeypatch):
    (tmp_path / "w8a").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDAC_DATA", "")
    with pytest.raises(DataError, match="w8a is not on this machine"):
        find("w8a")


def test_a_download_reports_its_progress(cache, serve, register):
    register(site=serve().site)
    seen = []
    fetch("toy", lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(TEXT), len(TEXT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_import_is_light():
    heavy = "{'sklearn', 'scipy', 'pooch', 'requests', 'rich'}"
    code = f"import sys, fedac.data; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "kind", "classes"),
    [
        ("digits", "multiclass", tuple(range(10))),
        ("breast-cancer", "binary", ("benign", "malignant")),
        ("diabetes", "real", ()),
    ],
)
def test_embedded_tables_are_those_of_scikit_learn(name, kind, classes):
    from sklearn import datasets

    data = load(name)
    how = {"scaled": False} if name == "diabetes" else {}
    theirs = getattr(datasets, f"load_{name.replace('-', '_')}")(**how)
    X = data.X if isinstance(data.X, np.ndarray) else data.X.toarray()
    np.testing.assert_allclose(X, theirs.data / (16 if name == "digits" else 1), rtol=1e-15)
    assert (data.kind, data.classes) == (kind, classes)
    labels = theirs.target_names[theirs.target] if kind == "binary" else theirs.target
    np.testing.assert_array_equal(data.labels, labels)


def test_images_in_the_format_of_mnist(tmp_path, monkeypatch):
    images = np.arange(24, dtype=np.uint8).reshape(6, 2, 2) * 10
    for name, array in (("images-idx3", images), ("labels-idx1", np.array([3, 1, 4, 1, 5, 9]))):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        path = tmp_path / f"mnist/train-{name}-ubyte.gz"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))
    monkeypatch.setenv("FEDAC_DATA", str(tmp_path))
    with pytest.raises(DataError, match="damaged: expected sha256 3552534a"):
        load("mnist")
    small = replace(
        SOURCES["mnist"], n_samples=6, n_features=4, sha256=None,
        labels=replace(SOURCES["mnist"].labels, sha256=None),
    )  # fmt: skip
    monkeypatch.setitem(SOURCES, "mnist", small)
    data = load("mnist")
    np.testing.assert_allclose(data.X.toarray(), images.reshape(6, 4) / 255)
    assert data.labels.tolist() == [3, 1, 4, 1, 5, 9]
    path.write_bytes(gzip.compress(b"not an array"))
    with pytest.raises(DataError, match="is not an IDX file"):
        load("mnist")
