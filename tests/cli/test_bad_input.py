# SPDX-License-Identifier: Apache-2.0
"""Bad input: one line that says what was wrong and what is accepted, and exit code 2."""

from __future__ import annotations

import bz2
import os
from contextlib import suppress
from threading import Thread

import pytest

from fedac.cli import options

GOOD = b"+1 1:0.5 3:1\n-1 2:1\n"


@pytest.mark.parametrize("option", ["--eta", "--mu"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "-1"])
def test_numbers_must_be_finite_and_positive(assert_refused, option, value):
    assert_refused("run", option, value, saying=f"{option} must be a finite number above 0, got ")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1"])
def test_l2_must_be_finite_and_at_least_zero(assert_refused, value):
    assert_refused("run", "--l2", value, saying="l2 must be a finite number, at least 0, got ")


def test_without_l2_some_algorithms_need_mu(assert_refused):
    assert_refused("run", "--l2", 0, saying="fedac-i needs mu > 0: with --l2 0, pass --mu")


@pytest.mark.slow
@pytest.mark.parametrize("l2", ["1e-300", "1e-20"])
def test_a_tiny_l2_is_refused_before_the_simulation(assert_refused, monkeypatch, l2):
    def simulate(*_, **__):
        raise AssertionError("the simulation must not start")

    monkeypatch.setattr("fedac.experiments.workload.run_problem", simulate)
    arguments = ("--dataset", "synthetic", "--algorithm", "fedavg", "--l2", l2)
    assert_refused("run", *arguments, saying="l2 is too small for this data: use a larger one")


@pytest.mark.parametrize(
    ("name", "nearest"), [("least_squares", "least-squares"), ("hinge", "squared-hinge")]
)
def test_unknown_loss_names_the_nearest(assert_refused, name, nearest):
    assert_refused("run", "--loss", name, saying=f"did you mean '{nearest}'?")


@pytest.mark.parametrize("algorithm", ["fedavg", "fedac-i", "mb-ac-sgd"])
def test_mu_is_checked_even_if_it_is_not_used(assert_refused, algorithm):
    assert_refused("run", "--algorithm", algorithm, "--mu", "-1", saying="mu must be")


@pytest.mark.parametrize(
    "value", ["", " ", ",", "0.1,", ",0.1", "a", "0.1;0.2", "0.1 0.2", "[0.1]", "0.1, ,0.2"]
)
def test_eta_must_be_numbers_between_commas(assert_refused, value):
    assert_refused(
        "run", "--eta", value, saying=f"--eta takes numbers separated by commas, got '{value}'"
    )


def test_one_bad_eta_of_several(assert_refused):
    assert_refused("run", "--eta", "0.1,-0.2,0.3", saying="got -0.2")


@pytest.mark.parametrize("option", ["--l2", "--mu"])
@pytest.mark.parametrize("value", ["", "abc"])
def test_not_a_number(assert_refused, option, value):
    assert_refused("run", option, value, saying=f"'{option}'")


def test_fedac_ii_needs_alpha_above_one(assert_refused):
    arguments = ("--algorithm", "fedac-ii", "--l2", "1", "--eta", "2")
    assert_refused("run", *arguments, saying="Use eta < 1/mu = 1")


@pytest.mark.parametrize(
    ("option", "named"), [("-M", "--workers"), ("-K", "--local-steps"), ("-T", "--steps")]
)
@pytest.mark.parametrize("value", ["0", "-1", f"{-(10**20)}"])
def test_counts_start_at_one(assert_refused, option, named, value):
    message = f"{named} must be a whole number, at least 1, got {value}"
    assert_refused("run", option, value, saying=message)


@pytest.mark.parametrize("option", ["-M", "-K", "-T", "--seed", "--record-every"])
@pytest.mark.parametrize("value", ["1.5", "abc", "", "1e3", "0x10"])
def test_counts_are_whole(assert_refused, option, value):
    assert_refused("run", option, value, saying=f"{option}'")


@pytest.mark.parametrize("option", ["-M", "-K", "-T"])
@pytest.mark.parametrize("value", [10**8 + 1, 10**18, 2**63, 10**30])
def test_counts_have_a_limit(assert_refused, option, value):
    assert_refused("run", option, value, saying="must be at most 100000000")


@pytest.mark.parametrize(
    ("K", "T", "choices"),
    [(3, 8, "Use T=6 or T=9"), (8, 3, "Use T=8"), (10**8, 8, f"Use T={10**8}")],
)
def test_k_must_divide_t(assert_refused, K, T, choices):
    assert_refused("run", "-K", K, "-T", T, saying=choices)


@pytest.mark.parametrize("value", [0, -1])
def test_record_every_starts_at_one(assert_refused, value):
    assert_refused("run", "--record-every", value, saying=f"at least 1, got {value}")


@pytest.mark.parametrize("value", [-1, 2**64, 10**30])
def test_seed_has_64_bits(assert_refused, value):
    assert_refused("run", "--seed", value, saying=f"got {value}")


@pytest.mark.parametrize(
    ("name", "nearest"), [("fedac", "fedac-i"), ("fedavq", "fedavg"), ("mbsgd", "mb-sgd")]
)
def test_unknown_algorithm_names_the_nearest(assert_refused, name, nearest):
    assert_refused("run", "--algorithm", name, saying=f"did you mean '{nearest}'?")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("a10a", "a1a"), ("a9b", "a9a"), ("synthetc", "synthetic"), ("RCV1", "rcv1")],
)
def test_unknown_data_set_names_the_nearest(assert_refused, name, nearest):
    assert_refused("run", "--dataset", name, saying=f"did you mean '{nearest}'?")


@pytest.mark.parametrize("name", ["?", "x" * 5000])
def test_a_name_unlike_any_data_set(assert_refused, name):
    assert_refused("run", "--dataset", name, saying="known: a1a, a9a, ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file has no rows"),
        (b"# only\n\n# comments\n", "has no rows"),
        (GOOD + b"+1 1:x\n", "line 3: '1:x': the value is not a finite number"),
        (GOOD + b"one 1:1\n", "line 3: label 'one' is not a finite number"),
        (GOOD + b"+1 1\n", "line 3: '1' is not of the form index:value"),
        (GOOD + b"+1 1:nan\n", "line 3: '1:nan': the value is not a finite number"),
        (GOOD + b"+1 1:-inf\n", "line 3: '1:-inf': the value is not a finite number"),
        (GOOD + b"+1 1:1e300\n", "line 3: '1:1e300': the value is too large: squares overflow"),
        (GOOD + b"-1e19 1:1\n", "line 3: label '-1e19' is too large: squares overflow above 1e+18"),
        (GOOD + b"nan 1:1\n", "line 3: label 'nan' is not a finite number"),
        (GOOD + b"+1 1:" + b"9" * 10_000 + b"\n", "line 3: '1:9999"),
        (
            GOOD + b"+1 0:1 2:1\n",
            "line 3: '0:1': the feature index must be a whole number from 1 to",
        ),
        (GOOD + b"+1 2:1 1:1\n", "line 3: '1:1': feature indices must ascend"),
        (
            GOOD + b"+1 2000000000:1\n",
            "line 3: '2000000000:1': the feature index must be a whole number from 1 to 1000",
        ),
        (GOOD + b"+1 99999999999999999999:1\n", "line 3: '99999999999999999999:1'"),
        (GOOD + b"+1 1:1\x00\n", "line 3: not text"),
        (b"\x7fELF\x00\x01\xff\xfe" * 50, "line 1: not text"),
        (b"1 1:1\n1 2:1\n", "every row has the target 1.0; two different ones are needed"),
    ],
)
def test_bad_files(assert_refused, write, content, message):
    assert_refused("run", "--dataset", write(content), saying=message)


@pytest.mark.parametrize("bytes_kept", [10, 30, -1])
def test_truncated_file(assert_refused, write, bytes_kept):
    packed = bz2.compress(GOOD * 100)
    file = write(packed[:bytes_kept], "cut.bz2")
    assert_refused("run", "--dataset", file, saying=f"{file} cannot be read: Compressed file ended")


def test_a_file_in_another_format_than_its_name_says(assert_refused, write):
    assert_refused("run", "--dataset", write(GOOD, "plain.bz2"), saying="plain.bz2 cannot be read")


def test_missing_file_and_folder(assert_refused, tmp_path):
    for path in (tmp_path / "none", "data/train.txt", "train.txt"):
        assert_refused("run", "--dataset", path, saying=f"{path} cannot be read: No such file")
    assert_refused("run", "--dataset", tmp_path, saying="cannot be read: ")
    assert_refused("run", "--dataset", tmp_path / ("x" * 5000), saying="cannot be read")


@pytest.mark.skipif(os.name != "posix", reason="needs /dev/zero")
def test_a_device_that_never_ends(assert_refused):
    for option in ("--dataset", "--test"):
        assert_refused("run", option, "/dev/zero", saying="/dev/zero: this is a device; give a")
    assert_refused("sweep", "/dev/zero", "--out", "x", saying="cannot read '/dev/zero': it is a")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_of_endless_zeros(assert_refused, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def pour() -> None:
        with suppress(BrokenPipeError), path.open("wb") as file:
            while True:
                file.write(bytes(1 << 20))

    writer = Thread(target=pour)
    writer.start()
    assert_refused("run", "--dataset", path, saying=f"{path}, line 1: not text")
    writer.join()


def test_odd_file_names_do_not_break_the_line(assert_refused, write):
    file = write(b"+1 1:nan\n", "new\nline \x1b[31m[red]")
    assert_refused("run", "--dataset", file, saying="new line  [31m[red], line 1: '1:nan'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frob"], "unknown command 'frob'; known: compare, data, demo, "),
        (["data", "frob"], "unknown command 'frob'; known: fetch, list, path"),
        (["--frob"], "No such option '--frob'; see 'fedac --help'"),
        (["run", "--frob"], "; see 'fedac run --help'"),
        (["run", "--etaa", "1"], "--eta"),
        (["run", "stray"], "(stray); see 'fedac run --help'"),
        (["run", "--eta"], "'--eta' requires an argument"),
        (["run", "--json=yes"], "'--json' does not take a value"),
        (["data", "path"], "; see 'fedac data path --help'"),
    ],
)
def test_usage_errors(assert_refused, arguments, message):
    assert_refused(*arguments, saying=message)


@pytest.mark.parametrize("value", [10**5, 10**30])
def test_threads_have_a_limit(assert_refused, value, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    saying = f"threads must be at most 32: this machine has 2 cores, got {value}"
    # Before the data are read.
    assert_refused("run", "--dataset", "no-such-folder/x", "--threads", value, saying=saying)


@pytest.mark.parametrize(
    ("value", "why"), [("100000", "must be at most 32"), ("0", "must be a whole number, at least")]
)
def test_threads_of_the_environment_are_checked(assert_refused, value, why, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setenv("NUMBA_NUM_THREADS", value)
    assert_refused("run", saying=f"NUMBA_NUM_THREADS {why}")


@pytest.mark.parametrize("value", ["0.1,0.1", "0.1,0.2,1e-1"])
def test_a_step_size_is_listed_once(assert_refused, value):
    assert_refused("run", "--eta", value, saying="--eta: 0.1 is listed twice")


@pytest.mark.parametrize(
    "arguments",
    [
        ["demo", "--out", ""],
        ["sweep", "--out", ""],
        ["sweep", ""],
        ["reproduce", "figure-1", "--out", ""],
        ["report", ""],
        ["report", "x", "--out", ""],
        ["export", ""],
        ["export", "x", "--csv", ""],
        ["export", "x", "--parquet", ""],
        ["merge", "", "x"],
        ["merge", "x", ""],
    ],
    ids=" ".join,
)
def test_an_empty_path_is_not_the_current_folder(assert_refused, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(*arguments, saying="the path is empty; the current folder is '.'")
    assert not list(tmp_path.iterdir())


def test_demo_checks_its_folder_before_it_computes(assert_refused, write, monkeypatch, tmp_path):
    file = write(b"")
    assert_refused("demo", "--out", file, saying=f"--out takes a writable folder; '{file}'")
    assert_refused("demo", "--out", file / "x", saying=f"'{file}' is a file")
    # Tests may run as root, who can write anywhere.
    monkeypatch.setattr(options.os, "access", lambda path, mode: False)
    assert_refused("demo", "--out", tmp_path / "new", saying=f"'{tmp_path}' is not writable")


def test_options_are_checked_before_the_data_are_read(assert_refused):
    arguments = ("run", "--dataset", "no-such-folder/no-such-file")
    assert_refused(*arguments, "-K", 3, "-T", 8, saying="K=3 does not divide T=8")
    assert_refused(*arguments, "--eta", "-1", saying="eta must be")
    assert_refused(*arguments, "-M", "0", saying="--workers must be")
    assert_refused(*arguments, "--record-every", "0", saying="--record-every must be")


@pytest.fixture
def names(write):
    """Give a file that names the clients of all rows of the small file."""
    return write(b"a\n" * 30 + b"b\n" * 30, "users.txt")


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        (
            ["--clients", 6, "-M", 4],
            "use either --workers or",
        ),
        (
            ["--split", "iid", "-M", 4],
            "use either --workers or",
        ),
        (["--split", "iid"], "--split iid needs --clients, the number of clients"),
        (["--dataset", ""], "--dataset is empty: A registered name"),
        (["--split", ""], "--split is empty: Split of the rows"),
        (["--clients", 6, "--split", ""], "--split is empty: Split of the rows"),
        (["--clients", 0], "clients must be a whole number, at least 1, got 0"),
        (["--clients", 10**9], "100000000"),
        (["--clients", 6, "--split", "lable"], "unknown split 'lable'; did you mean 'label'?"),
        (["--clients", 6, "--split", "dirichlet(-1)"], "a of dirichlet(a) must be a finite number"),
        (["--clients", 6, "--split-seed", -1], "seed"),
        (["--participation", 0], "participation must be a finite number above 0, got 0"),
        (["--participation", 300], "participation=300 is more than the 256 clients there are"),
        (["--clients", 6, "--participation", 2.5], "above 1 must be a whole number"),
        (["--batch", 0], "batch must be a whole number, at least 1, got 0"),
        (["--batch", "half"], "batch must be a whole number or 'full', got 'half'"),
        (["--clients", 6, "--weighting", "rows"], "unknown weighting 'rows'; known: examples"),
        (["--weighting", "uniform"], "--weighting needs --clients: all workers have the same"),
        (["--decay", "1/t"], "unknown decay '1/t'; known: 1/r, 1/sqrt(r), inverse(c), halve(c)"),
        (["--decay", "1/r", "--algorithm", "fedavg-weighted"], "assumes a constant step size"),
        (["--test", 1.5], "a share to hold out must be between 0 and 1, got 1.5"),
    ],
)
def test_options_of_clients_are_checked_before_the_data_are_read(assert_refused, arguments, saying):
    assert_refused("run", "--dataset", "no-such-data", *arguments, saying=saying)


def test_clients_that_do_not_fit_the_data(assert_refused, small, names, write):
    data = ("run", "--dataset", small)
    assert_refused(*data, "--clients", 61, saying="61 clients need at least 61 rows")
    assert_refused(
        *data, "--split", names, "--clients", 3, saying="there are 2 clients (users.txt), not 3"
    )
    assert_refused(*data, "--split", names, "--participation", 3, saying="more than the 2 clients")
    assert_refused(*data, "--split", names, "--test", 0.2, saying="names the clients of all rows")
    assert_refused(*data, "--test", 0.001, saying="of 60 rows leaves none to train or to test on")
    assert_refused(*data, "--test", "gone.t", saying="gone.t cannot be read: No such file")
    short = write(b"a\nb\n", "short.txt")
    assert_refused(*data, "--split", short, saying="has 2 lines, but small has 60 rows")
