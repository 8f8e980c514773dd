# SPDX-License-Identifier: Apache-2.0
"""The grid: what a file may contain, which runs it lists, and the keys of the runs."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedac.algorithms import ALGORITHMS
from fedac.algorithms.checks import fingerprint
from fedac.data import load
from fedac.errors import InputError
from fedac.experiments.grid import make_grid, read_grid, shipped
from fedac.experiments.workload import WITHOUT_FINGERPRINT, list_groups, make_workload
from fedac.federation.spec import RunSpec, options_of

TOML = """\
# A comment with eta = 3 in it.
name = "tiny"
dataset = "synthetic"
l2 = 1e-3
algorithms = ["fedac-i", "fedavg"]
workers = [4, 8]
local_steps = [
    1,
    16,
]
steps = 64
eta = [0.1, 1]
"""
CONFIG = RunSpec(
    dataset="a9a",
    data_hash="0" * 64,
    l2=1e-3,
    algorithm="fedac-i",
    M=8192,
    local_steps=64,
    steps=4096,
    eta=0.5,
    seed=1,
    record_every=512,
    precision="float32",
)


@pytest.fixture
def read(tmp_path):
    """Give a function that reads a grid from a text."""

    def read(text):
        path = tmp_path / "grid.toml"
        path.write_text(text)
        return read_grid(path)

    return read


def test_a_file(read):
    grid = read(TOML)
    assert grid.local_steps == (1, 16)
    assert grid.eta == (0.1, 1.0)
    assert (grid.seed, grid.record_every) == (1, 512)
    assert read(TOML.replace("[4, 8]", "4")).workers == 4
    assert read(TOML.replace("steps = 64\n", "")).steps == 4096


@pytest.mark.parametrize(
    ("old", "new", "saying"),
    [
        ("l2 = 1e-3", "l2 = -1", "line 4: l2 must be a finite number above 0, got -1"),
        ("l2 = 1e-3", "l2 = nan", "line 4: l2 must be a finite number above 0, got nan"),
        ("l2 = 1e-3", "l2 = '1'", "line 4: l2 must be a finite number above 0, got '1'"),
        ("l2 = 1e-3", "", "grid.toml: l2 is missing"),
        ("l2 = 1e-3", "l2 = = 1", "(at line 4, column 6)"),
        ("l2 = 1e-3", "l2 = 1\nl2 = 2", "(at line 5, column 7)"),
        ("l2 = 1e-3", "l3 = 1e-3", "line 4: unknown key 'l3'; did you mean 'l2'?"),
        ("fedavg", "fedav", "line 5: unknown algorithm 'fedav'; did you mean 'fedavg'"),
        ("[4, 8]", "[4, 8.5]", "line 6: workers must be a whole number, at least 1, got 8.5"),
        ("[4, 8]", "[true]", "line 6: workers must be a whole number, at least 1, got True"),
        ("[4, 8]", "[0]", "line 6: workers must be a whole number, at least 1, got 0"),
        ("[4, 8]", "[]", "line 6: workers is an empty list"),
        ("[4, 8]", "[4, 8, 4]", "line 6: workers: 4 is listed twice"),
        ("16,", "15,", "line 7: K=15 does not divide T=64"),
        ("[0.1, 1]", "[0.1, inf]", "line 12: eta must be a finite number above 0, got inf"),
        ("fedac-i", "fedac-ii", "line 12: "),
        ("steps = 64", "precision = 'half'", "line 11: unknown precision 'half'"),
        ("steps = 64", "intercept = 1", "line 11: intercept must be true or false, got 1"),
        ("steps = 64", "mu = 0", "line 11: mu must be a finite number above 0, got 0"),
        ("steps = 64", "loss = 'hinge'", "line 11: unknown loss 'hinge'; did you mean"),
        ("steps = 64", "loss = 'math:pi'", "line 11: 'math:pi' must be a subclass of"),
        ("fedavg", "gone:mine", "line 5: cannot import the module of 'gone:mine'"),
        ("fedavg", "fedac.algorithms:FEDAC_I", "line 5: algorithms: fedac-i is listed twice"),
        ("1]\n", "1]\n[seeds]", "line 13: seeds must be a whole number"),
        (
            "steps = 64",
            '"seeds" = [-1]',
            "line 11: seeds must be a whole number, at least 0",
        ),
    ],
)
def test_errors_name_file_line_and_key(read, old, new, saying):
    text = TOML.replace(old, new)
    if new == "fedac-ii":  # needs eta < 1/mu
        text = text.replace("1e-3", "1.0")
    with pytest.raises(InputError) as error:
        read(text)
    assert "grid.toml" in str(error.value)
    assert saying in str(error.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(InputError, match=r"cannot read '.*gone\.toml': No such file"):
        read_grid(tmp_path / "gone.toml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not TOML"):
        read_grid(tmp_path / "binary")


CLIENTS = TOML.replace("workers = [4, 8]", "clients = [4, 8]")


def test_a_file_with_clients(read):
    grid = read(
        CLIENTS
        + """
split = ["iid", "dirichlet(0.1)"]
split_seed = 3
participation = [0.5, 1, 4]
batch = [1, 4, "full"]
weighting = "uniform"
decay = "1/sqrt(r)"
test = 0.2
"""
    )
    assert (grid.workers, grid.clients, grid.split) == (None, (4, 8), ("iid", "dirichlet(0.1)"))
    assert (grid.participation, grid.batch) == ((0.5, 1.0, 4.0), (1, 4, "full"))
    assert (grid.weighting, grid.decay, grid.test) == ("uniform", "1/sqrt(r)", 0.2)
    assert read(CLIENTS + "test = 'a9a.t'").test == "a9a.t"


@pytest.mark.parametrize(
    ("line", "saying"),
    [
        ("workers = [4]", "line 6: use either workers or clients/split"),
        ("split = ['lable']", "unknown split 'lable'; did you mean 'label'?"),
        (
            "split = ['dirichlet(0)']",
            "split 'dirichlet(0)': a of dirichlet(a) must",
        ),
        ("split = ['iid', 'iid']", "line 13: split: iid is listed twice"),
        ("split_seed = -1", "line 13: split_seed must be a whole number, at least 0, got -1"),
        ("participation = [0]", "line 13: participation must be a finite number above 0, got 0"),
        ("participation = [5]", "line 13: participation=5 is more than the 4 cli"),
        ("participation = [2.5]", "line 13: participation above 1 must be a whole"),
        ("batch = [0]", "line 13: batch must be a whole number, at least 1, got 0"),
        ("batch = ['all']", "line 13: batch must be a whole number or 'full', got 'all'"),
        ("batch = ['full', 'full']", "line 13: batch: full is listed twice"),
        ("weighting = 'rows'", "line 13: unknown weighting 'rows'; known: examples, uniform"),
        ("decay = '1/t'", "line 13: unknown decay '1/t'; known: 1/r, 1/sqrt(r)"),
        ("decay = 0.5", "line 13: decay must be text, got 0.5"),
        ("test = 1.5", "line 13: a share to hold out must be between 0 and 1, got 1.5"),
        ("test = 0", "line 13: a share to hold out must be between 0 and 1, got 0"),
    ],
)
def test_mistakes_about_clients(read, line, saying):
    with pytest.raises(InputError) as error:
        read(f"{CLIENTS}{line}\n")
    assert saying in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "saying"),
    [
        (CLIENTS.replace("clients = [4, 8]", ""), "give the number of workers, or of clients"),
        (
            CLIENTS.replace("clients = [4, 8]", "split = ['iid']"),
            "split iid needs clients, the number",
        ),
        (
            CLIENTS.replace("[4, 8]", "[0]"),
            "line 6: clients must be a whole number, at least 1",
        ),
        (TOML + "split = ['iid']", "use either workers or clients/split"),
        (
            TOML + "weighting = 'uniform'",
            "line 13: weighting needs clients",
        ),
        (
            TOML + "participation = [5]",
            "line 13: participation=5 is more than the 4",
        ),
        (
            TOML.replace("fedavg", "fedavg-weighted") + "decay = '1/r'",
            "line 13: the output of 'fedavg-weighted' assumes a constant step size",
        ),
    ],
)
def test_options_that_do_not_fit_together(read, text, saying):
    with pytest.raises(InputError) as error:
        read(text)
    assert saying in str(error.value)


def test_a_file_of_clients_needs_no_number(read, tmp_path):
    users = tmp_path / "users.txt"
    users.write_text("a\nb\n")
    text = CLIENTS.replace("clients = [4, 8]", f"split = ['{users}']")
    assert read(text).clients is None
    with pytest.raises(InputError, match=r"line 13: '.*users.txt' names the clients of all"):
        read(f"{text}test = 0.2")
    with pytest.raises(InputError, match=r"unknown split '.*gone'"):
        read(text.replace("users.txt", "gone"))


def groups(grid):
    data = load("synthetic")
    return list_groups(grid, make_workload(grid, data), data)


def test_groups_of_clients(read):
    grid = read(
        CLIENTS.replace("[4, 8]", "[8, 4]")
        + "participation = [0.5, 1, 4]\nbatch = [1, 'full']\nsplit_seed = 2\n"
    )
    listed = groups(grid)
    assert [(g[0].M, g[0].participation, g[0].batch, g[0].K) for g in listed] == [
        (M, share, batch, K)
        # All four of four clients are everybody, which is listed already.
        for M, shares in ((4, (0.5, 1.0)), (8, (0.5, 1.0, 4.0)))
        for share in shares
        for batch in (1, "full")
        for K in (1, 16)
    ]
    runs = [run for group in listed for run in group]
    assert len({run.key for run in runs}) == len(runs)
    assert {(run.split, run.split_seed, len(run.split_hash)) for run in runs} == {("iid", 2, 64)}


def test_groups_cover_the_grid_once(read):
    listed = groups(read(TOML + "seeds = [1, 2]"))
    assert [(g[0].M, g[0].seed, g[0].K) for g in listed] == [
        (M, seed, K) for M in (4, 8) for seed in (1, 2) for K in (1, 16)
    ]
    runs = [run for group in listed for run in group]
    assert len({run.key for run in runs}) == len(runs) == 2 * 2 * 2 * 2 * 2
    for group in listed:
        assert len({(run.M, run.K, run.seed) for run in group}) == 1


def test_keys_never_change():
    # A new value here would make every existing store look empty.
    assert CONFIG.key == "bbe6a732e1068aa0531b91688380047e46d6b655b2b12f8a4fb57c3f6952b85e"
    assert replace(CONFIG, l2=1, eta=2).key == replace(CONFIG, l2=1.0, eta=2.0).key
    # What schema 2 added does not enter the key at its default, or where data_hash covers it.
    assert replace(CONFIG, mu=CONFIG.l2).key == CONFIG.key
    covered = replace(CONFIG, loss="least-squares", intercept=True, rows_hash="1")
    assert covered.key == CONFIG.key


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (
            {"split": "dirichlet(0.1)", "split_seed": 3, "split_hash": "1" * 64},
            "1429ed6acef7c4c74e8b21b61fe5d1befaea5a7ae048ebc3cc82f9f2125d7835",
        ),
        (
            {"split": "iid", "split_hash": "1" * 64, "weighting": "uniform"},
            "126043d968fbab35be7c09a99b7db0a6e9393bb577b94331262d033961df6922",
        ),
        (
            {"participation": 0.1},
            "586dd6e27b67b805f4726347242fa5359342b0a6ef671054d3740aa1f69fb5d2",
        ),
        ({"batch": 4}, "97be9215e459d75f89f0d1fccb9e35b93300e59d3c7be3f613980fda3af0645e"),
        ({"batch": "full"}, "806e80d355546e3bbd08ca80ce23fa90165d812438c563ec568c23a6226837e3"),
        (
            {"decay": "1/sqrt(r)"},
            "ff44552ac9c4983761052293679f4721ca52e30ccc6c0050a4109bc73d76cfe0",
        ),
        (
            {"test": "a9a.t", "test_hash": "2" * 64},
            "5876217751c44c22712e888b7e6466eed15456b9c468d918b5604e8238228691",
        ),
    ],
)
def test_keys_of_schema_3_never_change(options, key):
    assert replace(CONFIG, **options).key == key


def test_what_schema_3_added_is_in_no_key_where_it_is_not_used():
    usual = {
        "split": "", "split_seed": 0, "split_hash": "", "participation": 1, "batch": 1,
        "weighting": "examples", "decay": "", "test": "", "test_hash": "",
    }  # fmt: skip
    assert replace(CONFIG, **usual).key == CONFIG.key
    # The hashes cover these.
    clients = replace(CONFIG, split="iid", split_hash="1", test="a", test_hash="2")
    assert replace(clients, split_seed=7, test="b").key == clients.key


def test_built_in_algorithms_have_the_fingerprints_of_schema_1():
    assert {
        name: fingerprint(ALGORITHMS[name]) for name in WITHOUT_FINGERPRINT
    } == WITHOUT_FINGERPRINT
    grid = make_grid(dataset="synthetic", l2=1e-3, algorithms=list(WITHOUT_FINGERPRINT),
                     workers=4, local_steps=1, eta=0.1)  # fmt: skip
    (group,) = groups(grid)
    assert {config.fingerprint for config in group} == {""}


IN_THE_KEY = [
    name for name, option in options_of(RunSpec).items() if option.stored and option.in_key
]


@given(st.data())
def test_a_changed_field_is_another_run(data):
    config = replace(CONFIG, mu=0.5, fingerprint="0" * 16, split="iid", decay="1/r", epochs=1)
    field = data.draw(st.sampled_from(IN_THE_KEY))
    old = asdict(config)[field]
    new = {
        str: st.text(max_size=5),
        int: st.integers(0, 2**63 - 1),
        float: st.floats(1e-300, 1e300),
    }[type(old)]
    value = data.draw(new.filter(lambda value: value != old))
    assert replace(config, **{field: value}).key != config.key


def test_shipped_sweeps_have_the_papers_grids():
    names = ["a9a-l2-1e-2", "a9a-l2-1e-3", "a9a-l2-1e-4", "epsilon-l2-1e-4"]
    grids = {name: read_grid(shipped(name)) for name in names}
    for name, grid in grids.items():
        assert name == grid.name == f"{grid.dataset}-l2-{grid.l2:.0e}".replace("e-0", "e-")
        assert grid.workers == tuple(2**p for p in range(2, 14))
        assert grid.local_steps == tuple(2**p for p in range(9))
        assert (grid.steps, grid.record_every, grid.seed) == (4096, 512, 1)
    assert len(grids["a9a-l2-1e-3"].expand()) == 5616


def test_an_unknown_sweep():
    with pytest.raises(InputError, match="did you mean 'a9a-l2-1e-3'"):
        shipped("a9a-l2-1e3")
