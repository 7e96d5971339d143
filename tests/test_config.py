"""Configuration: what is right is read exactly, what is wrong is named with file, key and way out."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.config import Config, Spans, duration_ns
from schemas.errors import ConfigError
from stream.config_file import load_config
from stream.describe import default_toml, toml_of


def load(folder: Path, text: str) -> Config:
    """Return what a file of this text says."""
    path = folder / "model.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(path)


def refusal(folder: Path, text: str) -> str:
    """Return the line that refuses a file of this text, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    line = caught.value.line()
    assert "\n" not in line
    return line.removeprefix(f"{folder / 'model.toml'}: ")


def test_no_file_and_an_empty_one_are_the_default(tmp_path: Path) -> None:
    """Every key has a default."""
    assert load_config(None) == load(tmp_path, "") == Config()


def test_the_file_to_start_from_changes_nothing(tmp_path: Path) -> None:
    """`config init` writes the defaults, as they are."""
    assert load(tmp_path, default_toml(Config())) == Config()


def test_taking_the_comment_off_a_key_changes_nothing(tmp_path: Path) -> None:
    """In the file to start from every key stands under its own table with its own default."""
    lines = default_toml(Config()).splitlines()
    in_list = False
    opened = 0
    for number, line in enumerate(lines):
        in_list = line.startswith("#[[") or (in_list and not line.startswith("["))
        if in_list or not line.startswith("#") or line.startswith("# "):
            continue
        text = "\n".join([*lines[:number], line[1:], *lines[number + 1 :]])
        assert load(tmp_path, text) == Config(), line
        opened += 1
    assert opened > 30


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[limits]\nlanch_age = '1s'", "limits.lanch_age: unknown key; did you mean 'launch_age'?"),
        ("[limits]\nlength = '1s'", "limits.length: unknown key; did you mean 'windows.length'?"),
        ("[window]\n", "window: unknown key; did you mean 'windows'?"),
        (
            "[[roles.rules]]\nrole='a'\n[[roles.rules]]\nrole='b'\nproces='x'",
            "roles.rules[1].proces: unknown key; did you mean 'process'?",
        ),
        ("[limits]\ngroups = 'many'", "limits.groups: must be a whole number, not a string"),
        ("[limits]\ngroups = 1.5", "limits.groups: must be a whole number, not a fraction"),
        ("[limits]\ngroups = 0", "limits.groups: expected int >= 1"),
        (
            "[context]\nprocess_ranges = 1",
            "context.process_ranges: must be true or false, not a whole number",
        ),
        (
            "[context]\nprocess_ranges = 2020-01-01",
            "context.process_ranges: must be true or false, not a date or time",
        ),
        ("[context]\ndomains = 'a'", "context.domains: must be a list, not a string"),
        ("[context]\ndomains = ['a', 1]", "context.domains[1]: must be a string, not a whole number"),
        ("context = 3", "context: must be a table, not a whole number"),
        ("[roles]\nrules = 3", "roles.rules: must be a list of tables ([[...]]), not a whole number"),
        ("[roles]\nrules = [3]", "roles.rules[0]: must be a table, not a whole number"),
        ("[[roles.rules]]\nprocess = 'x'", "roles.rules[0].role: missing"),
        (
            "[[rows]]\nname = 'x'\ncount = 'kernel'\nmatch = 'x'",
            'rows[0].count: must be one of "ranges", "kernels", not "kernel"',
        ),
        (
            "[windows]\nlength = '10 s'",
            'windows.length: must be a number and a unit (ns, us, ms, s, m, h), such as "250ms", not "10 s"',
        ),
        (
            "[windows]\nlength = 10",
            'windows.length: must be a number and a unit (ns, us, ms, s, m, h), such as "250ms", not a whole number',
        ),
        ("[windows]\nlength = '0'", "windows.length: 0 is too short"),
        ("[windows]\nlength = '0.1ns'", "windows.length: 0.1ns is too short"),
        ("[limits]\nlaunch_age = '999999999h'", "limits.launch_age: 999999999h is too long"),
        ("[windows.steady]\ntimes = [[1, 2]]", "windows.steady.by: missing"),
    ],
)
def test_wrong_keys_and_types_are_named_by_path(tmp_path: Path, text: str, line: str) -> None:
    """One line gives the key's path, what is wrong and what was probably meant."""
    assert refusal(tmp_path, text) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[[roles.rules]]\nrole = 'a'\nprocess = '('",
            "roles.rules[0].process: not a regular expression: missing ), unterminated subpattern at position 0; write it in the syntax of Python's re",
        ),
        (
            "[clock]\nmark = 'anchor'",
            "clock.mark: has no named capture `ns`; write (?P<ns>-?[0-9]+) where the reading stands",
        ),
        (
            "[[context.rewrites]]\nmatch = 'a'\nreplace = '\\1'",
            r"context.rewrites[0].replace: not a replacement: invalid group reference 1 at position 1; write \1 or \g<name> for a group",
        ),
        (
            "[[context.rewrites]]\nmatch = '(?P<pid>a)'",
            "context.rewrites[0].match: the capture 'pid' would hide the process's own pid; give it another name",
        ),
        (
            "[context]\ndomains = ['a']\nexclude_domains = ['a']",
            "context.domains[0]: 'a' is in exclude_domains too",
        ),
        (
            "[[roles.rules]]\nrole = 'dit_{rnk}'",
            "roles.rules[0].role: no field {rnk} here; known: host, pid, rank",
        ),
        ("[[roles.rules]]\nrole = 'dit_{'", "roles.rules[0].role: a brace in 'dit_{' belongs to no {field}"),
        ("[[roles.rules]]\nrole = ''", "roles.rules[0].role: a role needs a name"),
        (
            "[roles]\nexpect = ['dit']",
            "roles.expect[0]: no rule makes the role 'dit'; there are no rules: add some under [[roles.rules]]",
        ),
        (
            "[roles]\nexpect = ['vae']\n[[roles.rules]]\nrole = 'dit_{rank}'",
            "roles.expect[0]: no rule makes the role 'vae'; the rules make dit_{rank}",
        ),
        ("[roles]\nexpect = ['rank0', 'rank0']", "roles.expect[1]: 'rank0' is listed twice"),
        (
            "[[rows]]\nname = 'a'\ncount = 'ranges'\nmatch = 'x'\nkey = '{ep}'",
            "rows[0].key: no field {ep} here; known: host, pid, rank, role",
        ),
        (
            "[[rows]]\nname = 'steady_gpu_ns_total'\ncount = 'ranges'\nmatch = 'x'",
            "rows[0].name: 'steady_gpu_ns_total' is a figure of the ledger; give it another name",
        ),
        (
            "[windows.steady]\nby = 'ranges'\nrole = 'rank0'",
            'windows.steady.name: missing, needed with by = "ranges"',
        ),
        (
            "[windows.steady]\nby = 'ranges'\nname = 'x'",
            'windows.steady.role: missing, needed with by = "ranges"',
        ),
        (
            "[windows.steady]\nby = 'ranges'\nname = 'x'\nrole = 'dit'",
            "windows.steady.role: no rule makes the role 'dit'; there are no rules: add some under [[roles.rules]]",
        ),
        (
            "[windows.measured]\nby = 'all'\nname = 'x'",
            'windows.measured.name: means nothing with by = "all"; take it out',
        ),
        (
            "[windows.measured]\nby = 'ranges'\nname = 'x'\nrole = 'rank0'\nwarmup = 3",
            "windows.measured.warmup: means something for windows.steady only; take it out",
        ),
        (
            "[windows.steady]\nby = 'times'",
            'windows.steady.times: missing or without spans, needed with by = "times"',
        ),
        (
            "[windows.steady]\nby = 'times'\ntimes = [[2, 1]]",
            "windows.steady.times[0]: [2, 1] is not a span of time",
        ),
        (
            "[windows.steady]\nby = 'times'\ntimes = [[1, 5], [4, 9]]",
            "windows.steady.times[1]: begins before the span before it ends; sort them and join overlaps",
        ),
        (
            "[windows.steady]\nby = 'ranges'\nname = 'x'\nrole = 'rank0'\ntolerance = inf",
            "windows.steady.tolerance: must be a finite number",
        ),
        (
            "[windows.steady]\nby = 'file'\ntimes = [[1, 2]]",
            "clock.role: missing, needed since windows.steady are in the application's clock; name the role whose clock marks tie that clock to the capture's",
        ),
    ],
)
def test_what_types_allow_but_cannot_mean_anything_is_refused(tmp_path: Path, text: str, line: str) -> None:
    """A configuration that could only mislead is an error, with the way out."""
    assert refusal(tmp_path, text) == line


def test_the_role_of_a_window_source_must_not_wait_for_ranges(tmp_path: Path) -> None:
    """Windows cut everybody's time, so their source is told by what is said of a process first."""
    line = refusal(
        tmp_path,
        "[[roles.rules]]\nrole = 'dit_rank{rank}'\nrange = 'dit'\n"
        "[windows.steady]\nby = 'ranges'\nname = 'step'\nrole = 'dit_rank0'",
    )
    assert line == (
        "windows.steady.role: the role 'dit_rank0' must be known from the first, yet roles.rules[0] asks for range"
        " names; tell it by process, command, thread, rank or pid, in a rule before those with ranges"
    )


def test_rules_that_ask_for_ranges_may_follow_the_window_sources_own(tmp_path: Path) -> None:
    """The first rule that matches wins, so later ones do not matter to it."""
    config = load(
        tmp_path,
        "[[roles.rules]]\nrole = 'dit_rank{rank}'\nprocess = 'dit'\n[[roles.rules]]\nrole = 'vae'\nrange = 'decode'\n"
        "[windows.steady]\nby = 'ranges'\nname = 'step'\nrole = 'dit_rank0'",
    )
    assert config.windows.steady.role == "dit_rank0"


def test_spans_of_a_file_stand_in_the_digest_and_its_place_does_not(tmp_path: Path) -> None:
    """The same spans from files of other names make the same configuration; other spans another."""
    digests = []
    config = Config()
    for name, spans in (("a.json", "[[1, 5], [5, 9]]"), ("b.json", "[[1,5],[5,9]]"), ("c.json", "[[1, 5]]")):
        (tmp_path / name).write_text(spans, encoding="utf-8")
        config = load(tmp_path, f"[clock]\nrole = 'rank0'\n[windows.steady]\nby = 'file'\nfile = '{name}'")
        digests.append(config.digest)
    assert digests[0] == digests[1] != digests[2]
    assert config.windows.steady == Spans(by="file", times=((1, 5),))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"[[1, 2.5]]", "not a list of spans: Expected `int`, got `float` - at `$[0][1]`"),
        (b"{", "not a list of spans: Expected `array`, got `object`"),
        (b"\xff", "not a list of spans: "),
    ],
)
def test_a_bad_file_of_spans_is_named(tmp_path: Path, content: bytes | None, line: str) -> None:
    """The line names configuration, key and file."""
    if content is not None:
        (tmp_path / "spans.json").write_bytes(content)
    found = refusal(tmp_path, "[clock]\nrole = 'rank0'\n[windows.steady]\nby = 'file'\nfile = 'spans.json'")
    assert found.startswith(f"windows.steady.file: {tmp_path / 'spans.json'}: {line}")


def test_files_that_are_no_toml_are_one_line(tmp_path: Path) -> None:
    """Syntax errors give line and column, bad bytes their place."""
    assert (
        refusal(tmp_path, "[limits\n")
        == "not TOML: Expected ']' at the end of a table declaration (at line 1, column 8)"
    )
    path = tmp_path / "model.toml"
    path.write_bytes(b"label = '\xff'")
    with pytest.raises(ConfigError, match="not UTF-8: byte 9 is 0xff"):
        load_config(path)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)
    assert "thousands of digits" in refusal(tmp_path, f"[limits]\ngroups = {'9' * 5000}")
    assert "a number and a unit" in refusal(tmp_path, f"[limits]\nlaunch_age = '{'9' * 5000}s'")
    assert "a number and a unit" in refusal(tmp_path, '[limits]\nlaunch_age = "10s\\n"')
    path.write_text("a = " + "[" * 100_000, encoding="utf-8")
    with pytest.raises(ConfigError):
        load_config(path)


def test_a_byte_order_mark_is_no_part_of_the_configuration(tmp_path: Path) -> None:
    """Some editors put one there."""
    assert load(tmp_path, "\ufeff[limits]\ngroups = 7").limits.groups == 7


def test_a_pattern_python_may_read_differently_one_day_says_nothing_today(tmp_path: Path) -> None:
    """Its warnings are for programmers."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path, "[[context.rewrites]]\nmatch = '[[a]'")


def test_what_show_prints_loads_as_the_same(tmp_path: Path) -> None:
    """`config show` loses nothing: patterns, unicode and control characters come back."""
    config = load(
        tmp_path,
        "[[roles.rules]]\nrole = 'dit_rank{rank}'\nprocess = 'dit\\d+'\n[[roles.rules]]\nrole = \"v\\u0007ä'\\\\🙂\"\n"
        "[[context.rewrites]]\nmatch = '(?P<ep>[0-9]+)'\n[context]\ndomains = ['', 'NCCL']\n"
        "[[rows]]\nname = 'r'\ncount = 'ranges'\nmatch = 'x'\nkey = '{rank}:{ep}'\n",
    )
    assert load(tmp_path, toml_of(config)) == config


@given(st.integers(0, 10**12), st.sampled_from(["ns", "us", "ms", "s"]))
def test_durations_are_exact(number: int, unit: str) -> None:
    """Whole durations come out as whole ns, however large."""
    assert duration_ns(f"{number}{unit}") == number * {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}[unit]


def test_fractions_of_a_unit_are_exact() -> None:
    """No float stands between a fraction and its ns."""
    assert duration_ns("0.3s") == 300_000_000
    assert duration_ns("1.5h") == 5_400_000_000_000
    assert duration_ns("0") == 0
