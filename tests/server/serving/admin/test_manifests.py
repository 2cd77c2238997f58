"""Manifests: skeletons that hold no value of a row, and checks that say where."""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from pathlib import Path

import click.testing
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bursar_server.admin.cli import main
from bursar_server.tables._manifest import Manifest
from tests.refresh_reference import EXAMPLE


def _run(*words: object, answers: str = "") -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, ["manifest", *map(str, words)], input=answers)


def _filled(text: str) -> str:
    """A skeleton whose owner knows everything."""
    text = text.replace('name = "TODO" ', 'name = "people" ').replace('adjacency = "TODO"', 'adjacency = "replace_one"')
    text = text.replace('lower = "TODO"', "lower = 0").replace('upper = "TODO"', "upper = 9")
    return text.replace("categories = []", 'categories = ["a"]')


def test_a_skeleton_of_types_is_a_manifest_once_its_owner_filled_it_in(tmp_path: Path) -> None:
    """Every column of a Parquet file; until then every TODO is refused, with column and line; no cell is in it."""
    table = pa.table({
        "age": pa.array([4711]), "sex": ["hush"], "smoker": [True], "born": pa.array([1], pa.date32()),
        'a "name"': [0.25], "wärd": pa.array(["hidden"]).dictionary_encode(),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "p.parquet")
    result = _run("new", "--parquet", tmp_path / "p.parquet")
    assert result.exit_code == 0, result.output
    assert not re.search("4711|hush|0\\.25|hidden", result.output)
    file = tmp_path / "p.toml"
    file.write_text(result.output, encoding="utf-8")
    refused = _run("check", file)
    assert refused.exit_code == 1
    line = 1 + result.output.splitlines().index(next(x for x in result.output.splitlines() if x.startswith("lower")))
    assert f"columns[0].lower: expected a valid number, got 'TODO' (column 'age', line {line})" in refused.output
    assert "(column 'sex', line" in refused.output
    file.write_text(_filled(result.output), encoding="utf-8")
    assert "people, 6 columns" in _run("check", file).output
    manifest = Manifest.load(file)
    assert [column.name for column in manifest.columns] == table.column_names
    assert "".join(column.kind[0] for column in manifest.columns) == "nccnnc"


def test_a_skeleton_of_a_header(tmp_path: Path) -> None:
    """A CSV file has names only; one whose first line is a row is refused without a word of it."""
    file = tmp_path / "p.csv"
    file.write_text("age,region\n4711,hush\n")
    output = _run("new", "--csv", file).output
    assert [column["name"] for column in tomllib.loads(output)["columns"]] == ["age", "region"]
    assert not re.search("4711|hush", output)
    for row in ("4711,hush\n", "x,x\n", "x,\n"):
        file.write_text(row)
        refused = _run("new", "--csv", file)
        assert refused.exit_code == 1
        assert "looks like a row" in refused.output
        assert "hush" not in refused.output


def test_a_skeleton_of_a_header_knows_how_the_file_is_written(tmp_path: Path) -> None:
    """The first line alone says it: delimiter and encoding; what a name suggests is a proposal, and a TODO stays."""
    file = tmp_path / "p.csv"
    header = "born;Geschlecht_männl;smoker;income;diagnosis;x"
    file.write_bytes(f"{header}\nhush,hush,hush,hush,hush,hush,hush,hush\n".encode("latin-1"))
    output = _run("new", "--csv", file).output
    found = tomllib.loads(output)
    assert found["csv"] == {"delimiter": ";", "encoding": "cp1252"}
    assert ";".join(column["name"] for column in found["columns"]) == header
    assert {column["kind"] for column in found["columns"]} == {"TODO"}
    for suggested in ("numeric", "boolean", "categorical"):
        assert f'"{suggested}", as its name suggests' in output
    assert "hush" not in output
    (tmp_path / "m.toml").write_text(output, encoding="utf-8")
    refused = _run("check", tmp_path / "m.toml")
    assert refused.output.count("kind: expected") == 6
    filled = _filled(output).replace('format = "TODO"', 'format = "%d.%m.%Y"')
    for kind in ("numeric", "boolean", "categorical"):
        filled = filled.replace(f'kind = "TODO"            # "{kind}", as', f'kind = "{kind}" # as')
    known = [part for part in filled.split("[[columns]]") if "remove the lines of other kinds" not in part]
    (tmp_path / "m.toml").write_text("[[columns]]".join(known), encoding="utf-8")
    assert "people, 4 columns" in _run("check", tmp_path / "m.toml").output
    file.write_bytes("\ufeffage,région\n".encode())
    assert "[csv]" not in _run("new", "--csv", file).output


def test_what_can_be_no_column_is_told_before_it_is_declared(tmp_path: Path) -> None:
    """An import would refuse lists and records, after all questions were answered."""
    file = tmp_path / "p.parquet"
    pq.write_table(pa.table({"visits": [[1, 2]], "at": [{"ward": 1}], "age": [47]}), file)
    output = _run("new", "--parquet", file).output
    assert [column["kind"] for column in tomllib.loads(output)["columns"]] == ["TODO", "TODO", "numeric"]
    assert output.count("which no column can be: remove it, or use --sql") == 2
    answers = ("", "", "", "none", "", "", "", "number", "0", "110", "", "")
    asked = _run("new", "--parquet", file, "--ask", answers="".join(f"{one}\n" for one in answers))
    assert [column["name"] for column in tomllib.loads(asked.stdout)["columns"]] == ["age"]


def test_a_skeleton_of_a_database(tmp_path: Path) -> None:
    """Types of a query's result; a query that would guess them from rows is refused."""
    with duckdb.connect(tmp_path / "d.duckdb") as connection:
        connection.execute("CREATE TABLE t AS SELECT 4711 AS age, 'hush' AS region, DATE '2001-02-03' AS born")
    output = _run("new", "--sql", "FROM t", "--database", tmp_path / "d.duckdb").output
    columns = tomllib.loads(output)["columns"]
    assert [(column["name"], column["kind"]) for column in columns] == [
        ("age", "numeric"), ("region", "categorical"), ("born", "numeric"),
    ]  # fmt: skip
    assert not re.search("4711|hush|2001", output)
    (tmp_path / "p.csv").write_text("age\n1\n")
    assert "guess types" in _run("new", "--sql", f"FROM '{tmp_path / 'p.csv'}'").output
    assert "exactly one" in _run("new").output


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("public_rows = 50000", "public_rows = 0", "(line 4)"),
        ("max_rows = 10", "max_rows = 0", "(line 8)"),
        ("lower = 0\nupper = 110", 'lower = 0\nupper = "x"', "(column 'age', line 19)"),
        ('case = "ignore"', 'case = "ignored"', "(column 'ward',"),
        ('unit = "months"', 'unit = "weeks"', "(column 'admitted',"),
        ('name = "clinic"', 'name = "The Clinic"', "small letters, digits, - and _"),
        ("[unit]\n", "[unyt]\n", "unyt: unknown field; remove it, or correct its name (line 6)"),
    ],
)
def test_a_problem_has_its_line(tmp_path: Path, old: str, new: str, place: str) -> None:
    """And its column."""
    assert old in EXAMPLE
    file = tmp_path / "m.toml"
    file.write_text(EXAMPLE.replace(old, new))
    output = _run("check", file).output
    assert place in output
    assert place in json.loads(_run("check", file, "--json").output)["problems"][0]
    line = re.search(r"line (\d+)\)", output)
    assert line is not None
    changed = next(one for one in new.splitlines() if one not in old.splitlines())
    assert changed in EXAMPLE.replace(old, new).splitlines()[int(line[1]) - 1]


def test_one_bracket_is_too_few(tmp_path: Path) -> None:
    """A mistake of everybody's first manifest, with its line and what to write."""
    file = tmp_path / "m.toml"
    file.write_text('name = "m"\nadjacency = "replace_one"\n\n[columns]\nname = "x"\n')
    assert (
        "columns: expected [[columns]], with two brackets, before the fields of each column (line 4)"
        in _run("check", file).output
    )
    file.write_text(
        'name = "m"\nadjacency = "replace_one"\n[[columns]]\nname = "x"\nkind = "categorical"\ncategories = 1'
    )
    assert (
        "columns[0].categories: expected a list in brackets, got 1 (column 'x', line 6)" in _run("check", file).output
    )
    file.write_text(
        'name = "m"\nadjacency = "replace_one"\n[[columns]]\nname = "x"\nkind = "numeric"\nlower = 0\nupper = 9\n'
        'date = "%d.%m.%Y"'
    )
    said = _run("check", file).output
    assert "columns[0].date: expected a table in braces, such as { key = value }, got '%d.%m.%Y' (column 'x'" in said


@pytest.mark.slow
def test_the_schema_accepts_what_the_program_accepts() -> None:
    """An editor that has it complains about a wrong field, and not about the page's example."""
    jsonschema = importlib.import_module("jsonschema")  # late: it compiles grammars for two seconds
    schema = json.loads(_run("schema").output)
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    example = json.loads(json.dumps(tomllib.loads(EXAMPLE), default=str))
    check.validate(example)
    assert not check.is_valid({**example, "adjacency": "swap"})
    assert not check.is_valid({**example, "columns": [{"name": "x", "kind": "numeric"}]})
