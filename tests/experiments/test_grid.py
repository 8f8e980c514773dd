"""The grid: what a file may contain, which runs it lists, and the keys of the runs."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedac.algorithms import ALGORITHMS
from fedac.algorithms.fingerprints import fingerprint
from fedac.errors import InputError
from fedac.experiments.grid import Config, Grid, groups, shipped
from fedac.experiments.identity import SCHEMA_1

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
CONFIG = Config(
    dataset="a9a",
    data_hash="0" * 64,
    l2=1e-3,
    algorithm="fedac-i",
    M=8192,
    K=64,
    T=4096,
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
        return Grid.from_toml(path)

    return read


def test_a_file(read):
    grid = read(TOML)
    assert grid.local_steps == (1, 16)
    assert grid.eta == (0.1, 1.0)
    assert (grid.seeds, grid.record_every) == ((1,), 512)
    assert read(TOML.replace("steps = 64\n", "")).steps == 4096


@pytest.mark.parametrize(
    ("old", "new", "saying"),
    [
        ("l2 = 1e-3", "l2 = -1", "line 4: l2 should be greater than 0, got -1"),
        ("l2 = 1e-3", "l2 = nan", "line 4: l2 should be a finite number, got nan"),
        ("l2 = 1e-3", "l2 = '1'", "line 4: l2 should be a valid number, got '1'"),
        ("l2 = 1e-3", "", "grid.toml: l2 is missing"),
        ("l2 = 1e-3", "l2 = = 1", "(at line 4, column 6)"),
        ("l2 = 1e-3", "l2 = 1\nl2 = 2", "(at line 5, column 7)"),
        ("l2 = 1e-3", "l3 = 1e-3", "line 4: l3: unknown key 'l3'; did you mean 'l2'?"),
        ("fedavg", "fedav", "line 5: algorithms: unknown algorithm 'fedav'; did you mean 'fedavg'"),
        ("[4, 8]", "[4, 8.5]", "line 6: workers should be a valid integer, got 8.5"),
        ("[4, 8]", "[true]", "line 6: workers should be a valid integer, got True"),
        ("[4, 8]", "[0]", "line 6: workers should be greater than or equal to 1, got 0"),
        ("[4, 8]", "[]", "line 6: workers should have at least 1 item, not 0, got []"),
        ("[4, 8]", "4", "line 6: workers should be a valid list, got 4"),
        ("[4, 8]", "[4, 8, 4]", "line 6: workers: 4 is listed twice"),
        ("16,", "15,", "line 7: local_steps: K=15 does not divide T=64"),
        ("[0.1, 1]", "[0.1, inf]", "line 12: eta should be a finite number, got inf"),
        ("fedac-i", "fedac-ii", "line 12: eta: "),
        ("steps = 64", "precision = 'half'", "line 11: precision should be 'float32' or 'float64'"),
        ("steps = 64", "intercept = 1", "line 11: intercept should be a valid boolean, got 1"),
        ("steps = 64", "mu = 0", "line 11: mu should be greater than 0, got 0"),
        ("steps = 64", "loss = 'hinge'", "line 11: loss: unknown loss 'hinge'; did you mean"),
        ("steps = 64", "loss = 'math:pi'", "line 11: loss: 'math:pi' must be a subclass of"),
        ("fedavg", "gone:mine", "line 5: algorithms: cannot import the module of 'gone:mine'"),
        ("fedavg", "fedac.algorithms:FEDAC_I", "line 5: algorithms: fedac-i is listed twice"),
        ("1]\n", "1]\n[seeds]", "line 13: seeds should be a valid list"),
        ("steps = 64", '"seeds" = [-1]', "line 11: seeds should be greater than or equal to 0"),
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
        Grid.from_toml(tmp_path / "gone.toml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not TOML"):
        Grid.from_toml(tmp_path / "binary")


def test_groups_cover_the_grid_once(read):
    grid = read(TOML + "seeds = [1, 2]")
    listed = groups(grid, dataset="synthetic", data_hash="0" * 64)
    assert [(g[0].M, g[0].seed, g[0].K) for g in listed] == [
        (M, seed, K) for M in (4, 8) for seed in (1, 2) for K in (1, 16)
    ]
    configs = [config for group in listed for config in group]
    assert len({config.key for config in configs}) == len(configs) == 2 * 2 * 2 * 2 * 2
    for group in listed:
        assert len({(c.M, c.K, c.seed) for c in group}) == 1


def test_keys_never_change():
    # A new value here would make every existing store look empty.
    assert CONFIG.key == "bbe6a732e1068aa0531b91688380047e46d6b655b2b12f8a4fb57c3f6952b85e"
    assert replace(CONFIG, l2=1, eta=2).key == replace(CONFIG, l2=1.0, eta=2.0).key
    # What schema 2 added does not enter the key at its default, or where data_hash covers it.
    assert replace(CONFIG, mu=CONFIG.l2).key == CONFIG.key
    covered = replace(CONFIG, objective="least-squares", intercept=True, rows_hash="1")
    assert covered.key == CONFIG.key


def test_built_in_algorithms_have_the_fingerprints_of_schema_1():
    assert {name: fingerprint(ALGORITHMS[name]) for name in SCHEMA_1} == SCHEMA_1
    grid = Grid(name="all", dataset="tiny", l2=1e-3, algorithms=tuple(SCHEMA_1), workers=(4,),
                local_steps=(1,), eta=(0.1,))  # fmt: skip
    (group,) = groups(grid, dataset="tiny", data_hash="")
    assert {config.fingerprint for config in group} == {""}


IN_THE_KEY = [field.name for field in fields(Config)]
COVERED = ("objective", "intercept", "rows_hash", "split_seed", "test")  # by the hashes
IN_THE_KEY = [name for name in IN_THE_KEY if name not in COVERED]


@given(st.data())
def test_a_changed_field_is_another_run(data):
    config = replace(CONFIG, mu=0.5, fingerprint="0" * 16)
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
    grids = {name: Grid.from_toml(shipped(name)) for name in names}
    for name, grid in grids.items():
        assert name == grid.name == f"{grid.dataset}-l2-{grid.l2:.0e}".replace("e-0", "e-")
        assert grid.workers == tuple(2**p for p in range(2, 14))
        assert grid.local_steps == tuple(2**p for p in range(9))
        assert (grid.steps, grid.record_every, grid.seeds) == (4096, 512, (1,))
    listed = groups(grids["a9a-l2-1e-3"], dataset="a9a", data_hash="")
    assert sum(map(len, listed)) == 5616


def test_an_unknown_sweep():
    with pytest.raises(InputError, match="did you mean 'a9a-l2-1e-3'"):
        shipped("a9a-l2-1e3")
