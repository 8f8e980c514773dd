"""The data sets fedac knows by name: where they are, and how to get them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedac.cache import cache_dir
from fedac.data.dataset import Dataset
from fedac.data.download import OnProgress, download_file, file_sha256
from fedac.data.generated import dense, synthetic
from fedac.data.libsvm import OPENERS, load_libsvm
from fedac.errors import DataError, look_up, unknown_name

LIBSVM_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
# Files that are part of the package; the README there names their sources and licenses.
EMBEDDED = Path(__file__).parent / "embedded"


@dataclass(frozen=True)
class Source:
    """A data set: its shape and, unless it is generated, the file to download.

    ``sha256`` is that of the file as downloaded, None if nobody published it.
    """

    name: str
    file: str
    n_samples: int
    n_features: int
    note: str
    sha256: str | None = None
    site: str = LIBSVM_URL


A1A_SHA256 = "eb54c45f1bdb51286f803dd092eb8202b44637a858fc6c4e533a2d64a0d94b4e"
A9A_SHA256 = "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"
A9A_NOTE = "census income; the paper's main experiment (UCI Adult, CC BY 4.0)"

SOURCES = {
    source.name: source
    for source in (
        Source("a1a", "a1a", 1_605, 123, "census income, small", A1A_SHA256),
        Source("a9a", "a9a", 32_561, 123, A9A_NOTE, A9A_SHA256),
        Source("covtype", "covtype.libsvm.binary.scale.bz2", 581_012, 54, "forest cover, scaled"),
        Source("epsilon", "epsilon_normalized.xz", 400_000, 2_000, "dense; needs 10 GB of memory"),
        Source("ijcnn1", "ijcnn1.bz2", 49_990, 22, "IJCNN 2001 challenge"),
        Source("mushrooms", "mushrooms", 8_124, 112, "edible or poisonous"),
        Source("phishing", "phishing", 11_055, 68, "phishing web sites"),
        Source("rcv1", "rcv1_train.binary.bz2", 20_242, 47_236, "news stories, very sparse"),
        Source("real-sim", "real-sim.bz2", 72_309, 20_958, "Usenet articles, very sparse"),
        Source("w8a", "w8a", 49_749, 300, "web pages"),
    )
}

GENERATED: dict[str, Callable[[], Dataset]] = {"synthetic": synthetic, "synthetic-dense": dense}


def find(name: str) -> Path:
    """Return the local file of a data set: in ``$FEDAC_DATA``, the cache or this package.

    If there is none, the error says how to download it.

    Examples
    --------
    >>> find("a10a")
    Traceback (most recent call last):
        ...
    fedac.errors.InputError: unknown data set 'a10a'; did you mean 'a1a'? known: ...
    """
    source = look_up("data set", name, SOURCES)
    path = _local(source)
    if path is None:
        searched = " or ".join(str(folder) for folder in _folders())
        raise DataError(
            f"{name} is not on this machine: no {source.file} in {searched}; "
            f"get it with 'fedac data fetch {name}'"
        )
    return path


def fetch(name: str, on_progress: OnProgress = lambda done, total: None) -> Path:
    """Find a data set or download it to the cache, and verify its checksum."""
    source = look_up("data set", name, SOURCES)
    path = _local(source)
    if path is None:
        path = _data_cache() / source.file
        download_file(source.site + source.file, path, source.sha256, on_progress)
        if source.sha256 is None:
            # There is nothing to compare with yet, but later damage will be noticed.
            _record(path).write_text(f"{file_sha256(path)}  {path.name}\n")
    else:
        _verify(source, path)
    return path


def load(name: str | Path, on_progress: OnProgress = lambda done, total: None) -> Dataset:
    """Load a data set by name, downloading it if necessary, or from a LIBSVM file.

    Parameters
    ----------
    name : str or Path
        ``synthetic``, ``synthetic-dense``, a registered name (see `describe`), or the path of a
        LIBSVM file. To load a file named like a registered data set, write ``./a9a``.
    on_progress : callable
        Called during a download with the bytes so far and the total, None if unknown.

    Examples
    --------
    >>> load("a9a").n_samples
    32561
    """
    if isinstance(name, Path):
        return load_libsvm(name)
    if name in GENERATED:
        return GENERATED[name]()
    if name in SOURCES:
        return _load_source(SOURCES[name], on_progress)
    # os.path.exists, because Path.exists raises if a name is too long for the system.
    path = Path(name)
    if path.name != name or path.suffix or os.path.exists(name):  # noqa: PTH110
        return load_libsvm(name)
    raise unknown_name("data set", name, [*SOURCES, *GENERATED])


def describe() -> list[tuple[Source, str]]:
    """List every data set that `load` knows by name, and where it is on this machine.

    Examples
    --------
    >>> [where for source, where in describe() if source.name == "synthetic"]
    ['generated']
    """
    generated = (
        Source("synthetic", "", 32_561, 123, "the shape of a9a"),
        Source("synthetic-dense", "", 4_000, 2_000, "the shape of epsilon, fewer rows"),
    )
    listed = [(source, "generated") for source in generated]
    for source in SOURCES.values():
        path = _local(source)
        embedded = path is not None and path.parent == EMBEDDED
        listed.append((source, "embedded" if embedded else str(path or "not here")))
    return listed


def _data_cache() -> Path:
    return cache_dir() / "data"


def _folders() -> list[Path]:
    given = os.environ.get("FEDAC_DATA")
    return [Path(given), _data_cache()] if given else [_data_cache()]


def _local(source: Source) -> Path | None:
    """Look for the file, also uncompressed or compressed in another format."""
    suffix = Path(source.file).suffix
    stem = source.file.removesuffix(suffix) if suffix in OPENERS else source.file
    names = dict.fromkeys([source.file, stem, *(stem + other for other in OPENERS)])
    paths = (folder / name for folder in (*_folders(), EMBEDDED) for name in names)
    return next((path for path in paths if path.is_file()), None)


def _record(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _verify(source: Source, path: Path) -> None:
    """Compare a file with its published checksum, or with the one recorded at the download."""
    expected = source.sha256 if path.name == source.file else None
    if expected is None and _record(path).is_file():
        expected = _record(path).read_text().partition(" ")[0]
    if expected is None:
        return
    got = file_sha256(path)
    if got != expected:
        raise DataError(
            f"{path} is damaged: expected sha256 {expected}, got {got}; "
            f"delete it and run 'fedac data fetch {source.name}'"
        )


def _load_source(source: Source, on_progress: OnProgress) -> Dataset:
    path = fetch(source.name, on_progress)
    again = f"delete {path} and run 'fedac data fetch {source.name}'"
    try:
        data = load_libsvm(path, source.n_features, source.name)
    except DataError as error:
        raise DataError(f"{error}; {again}") from None
    if data.n_samples != source.n_samples:
        raise DataError(
            f"{path} has {data.n_samples} rows but {source.name} has {source.n_samples}; {again}"
        )
    return data
