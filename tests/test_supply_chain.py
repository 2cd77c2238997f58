"""Contents of the image: locked, hashed, listed, checked; and a wheel that everybody builds the same."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from deploy import lock, vulnerabilities

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = {name: lock.read((ROOT / "deploy" / name).read_text(encoding="utf-8")) for name in lock.FILES}


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_version_is_the_tested_one(name: str) -> None:
    """Locks and constraints agree, package for package, and every file has a hash."""
    pins = lock.constraints((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    # What installs is no part of an environment's constraints.
    locked = {package: version for package, (version, _) in LOCKS[name].items() if package != "pip"}
    assert locked == {package: pins[package] for package in locked}
    for package, (_, hashes) in LOCKS[name].items():
        assert hashes, package
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), package


@pytest.mark.parametrize("name", LOCKS)
def test_everything_that_is_wanted_is_locked(name: str) -> None:
    """The packages of pyproject.toml, and what they need, are those that the installed packages name."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    def needed(text: str) -> set[tuple[str, frozenset[str]]]:
        requirement = Requirement(text)
        extras = [{"extra": extra} for extra in requirement.extras] or [{"extra": ""}]
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            return set()
        inner = (Requirement(line) for line in requires(requirement.name) or ())
        below = {
            str(one) for one in inner if one.marker is None or any(one.marker.evaluate(dict(extra)) for extra in extras)
        }
        return {(lock.canonical(requirement.name), frozenset(below))}

    waiting, seen = list(lock.wanted(PROJECT, build=lock.FILES[name])), set()
    while waiting:
        for package, below in needed(waiting.pop()):
            if package not in seen:
                seen.add(package)
                waiting += [re.sub(r";.*", "", line) for line in below]
    assert seen == set(LOCKS[name])


def test_a_lock_is_read_as_it_is_written() -> None:
    """Names, versions and hashes; and a version that was changed by hand is found."""
    locked = {"a-b": ("1.0", {"sha256:" + "0" * 64, "sha256:" + "1" * 64}), "c": ("2", {"sha256:" + "2" * 64})}
    assert lock.read(lock.written(locked)) == locked
    assert lock.constraints("# x\nA_b==1.0  # why\n\nc==2\n") == {"a-b": "1.0", "c": "2"}


@pytest.mark.slow
def test_pip_refuses_a_file_with_another_hash(tmp_path: Path) -> None:
    """The locks are of use only if the installation looks at them."""
    wheel = _wheel(tmp_path / "one", tmp_path)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    for named, good in ((digest, True), ("0" * 64, False)):
        (tmp_path / "lock").write_text(f"{wheel.as_uri()} --hash=sha256:{named}\n")
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--no-index", "--ignore-installed"]
        done = subprocess.run(
            [*command, "--require-hashes", "-r", str(tmp_path / "lock")], capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) is good, done.stderr
        assert good or "DO NOT MATCH" in done.stderr


def _wheel(folder: Path, home: Path, **environment: str) -> Path:
    """Builds the wheel from a copy of the sources in a folder of its own, without an index."""
    folder.mkdir(parents=True)
    for part in ("client", "server", "ledger", "proto"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, folder / file)
    target = home / f"dist-{folder.name}"
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--quiet"]
    subprocess.run(
        [*command, "--wheel-dir", str(target), "."], cwd=folder, check=True, env={**os.environ, **environment}
    )
    (built,) = target.glob("*.whl")
    return built


@pytest.mark.slow
def test_everybody_builds_the_same_wheel(tmp_path: Path) -> None:
    """Another folder, time, umask, time zone and language give the same bytes."""
    first = _wheel(tmp_path / "one", tmp_path)
    umask = os.umask(0o077)
    try:
        second = _wheel(tmp_path / "a" / "longer" / "two", tmp_path, TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="7")
    finally:
        os.umask(umask)
    assert second.read_bytes() == first.read_bytes()
    with zipfile.ZipFile(first) as content:
        assert not [name for name in content.namelist() if name.startswith("tests") or "__pycache__" in name]
    changed = _wheel(tmp_path / "changed" / "x", tmp_path, SOURCE_DATE_EPOCH="1700000000")
    assert changed.read_bytes() != first.read_bytes(), "the comparison finds nothing"


@pytest.mark.slow
def test_the_bill_of_materials_lists_what_is_locked(tmp_path: Path) -> None:
    """The Makefile's command writes CycloneDX, valid, twice the same, each package with version and hashes."""
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nsbom:")[2].partition("\n\n")[0]
    words = re.search(r"cyclonedx-py (.*?) --output-file", recipe.replace("\\\n", " "), re.DOTALL)
    assert words is not None
    made = []
    for name in ("one.json", "two.json"):
        command = [str(Path(sys.executable).with_name("cyclonedx-py")), *words[1].split()]
        subprocess.run([*command, "--output-file", str(tmp_path / name)], cwd=ROOT, check=True, capture_output=True)
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1]
    bill: dict[str, Any] = json.loads(made[0])
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "bursar")
    listed = {
        one["name"]: (
            one["version"],
            {
                f"sha256:{each['content']}"
                for reference in one.get("externalReferences", ())
                for each in reference.get("hashes", ())
            },
        )
        for one in bill["components"]
    }
    assert listed == LOCKS["requirements.lock"]


GOOD: vulnerabilities.Answer = {"a==1": [], "b==2": []}
NOBODY: vulnerabilities.Answer = {"a==1": None, "b==2": None}


def _judged(
    answer: vulnerabilities.Answer, record: Any = None, locked: bytes = b"lock", today: str = "2026-11-22"
) -> vulnerabilities.Verdict:
    return vulnerabilities.judge(locked, record, answer, today)


def test_a_vulnerable_version_is_a_failure() -> None:
    """Named with its advisory, also if others could not be asked about; all that was asked is to be recorded."""
    found = _judged(GOOD | {"b==2": ["PYSEC-1", "GHSA-2"]})
    assert found.status == 1
    assert "b==2: PYSEC-1, GHSA-2" in found.text
    assert found.record is not None
    assert found.record["found"] == {"b==2": ["PYSEC-1", "GHSA-2"]}
    assert _judged(NOBODY | {"b==2": ["PYSEC-1"]}).status == 1
    assert _judged(GOOD).status == 0


def test_an_accepted_advisory_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a reason; others of the same package count."""
    assert all(vulnerabilities.ACCEPTED.values())
    monkeypatch.setattr(vulnerabilities, "ACCEPTED", {"PYSEC-1": "only on Windows"})
    assert _judged({"b==2": ["PYSEC-1"]}).status == 0
    assert _judged({"b==2": ["PYSEC-1", "GHSA-2"]}).status == 1


def test_where_nobody_can_be_asked_only_a_record_of_this_lock_counts() -> None:
    """Lately enough, without a finding; and it says that nobody was asked. Else nothing is known, which is no pass."""
    record = _judged(GOOD).record
    late = _judged(NOBODY, record, today="2027-01-20")
    assert (late.status, late.record) == (0, None)
    assert "NOT ASKED about 2 of 2 packages" in late.text
    assert _judged(GOOD | {"b==2": None}, record).status == 0
    assert _judged(NOBODY, record, today="2027-01-22").status == 3
    assert _judged(NOBODY, record, today="2026-11-21").status == 3
    assert _judged(NOBODY, record, locked=b"lock with a planted pin").status == 3
    assert _judged(GOOD | {"b==2": None}).status == 3
    assert _judged(NOBODY, _judged({"b==2": ["PYSEC-1"]}).record).status == 1


def test_the_command_says_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit status says it; it writes its record only if it is told to."""
    monkeypatch.setattr(vulnerabilities, "RECORD", tmp_path / "record.json")
    assert vulnerabilities.main(lambda _: NOBODY, keep=True) == 3
    assert vulnerabilities.main(lambda _: GOOD) == 0
    assert not (tmp_path / "record.json").exists()
    assert vulnerabilities.main(lambda _: GOOD, keep=True) == 0
    assert vulnerabilities.main(lambda _: NOBODY) == 0
    assert vulnerabilities.main(lambda _: {"b==2": ["PYSEC-1"]}, keep=True) == 1
    assert vulnerabilities.main(lambda _: NOBODY) == 1


def test_the_whole_check_says_at_its_end_what_is_not_known() -> None:
    """A finding ends .ci/run with a failure; an index that does not answer is told last, where it is seen."""
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    script = text[text.index("known=0") :]
    for status in (0, 1, 3):
        fake = script.replace(".venv/bin/python deploy/vulnerabilities.py", f"(exit {status})")
        fake = re.sub(r"^make .*$", "echo made", fake, flags=re.MULTILINE)
        done = subprocess.run(
            ["/bin/bash", "-c", f"set -euo pipefail\n{fake}"], capture_output=True, text=True, check=False
        )
        assert (done.returncode != 0) == (status == 1)
        assert ("NOT KNOWN" in done.stdout) == (status == 3)


def test_a_record_is_of_the_lock_that_there_is() -> None:
    """A new lock needs a new check: `.venv/bin/python deploy/vulnerabilities.py --record`."""
    if vulnerabilities.RECORD.exists():
        record = json.loads(vulnerabilities.RECORD.read_text(encoding="utf-8"))
        assert record["lock_sha256"] == hashlib.sha256(vulnerabilities.LOCK.read_bytes()).hexdigest()
        assert record["packages"] == len(LOCKS["requirements.lock"])


@pytest.mark.slow
def test_a_planted_version_is_found_by_the_index(tmp_path: Path) -> None:
    """The real question, about a version with a known hole; skipped with the reason where there is no index."""
    planted = tmp_path / "planted.lock"
    planted.write_text(lock.written({"jinja2": ("3.1.2", {"sha256:" + "0" * 64})}))
    answer = vulnerabilities.ask(planted)
    if answer == {"jinja2==3.1.2": None}:
        pytest.skip("the package index does not answer questions about versions here")
    assert _judged(answer).status == 1
