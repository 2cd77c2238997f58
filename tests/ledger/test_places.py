"""Places that keep notes: what was written comes back, whatever was cut off, and what is not there is not made up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bursar_ledger.checkpoints import (
    Checkpoint,
    FilePlace,
    GitPlace,
    Place,
    PlaceError,
    SigningKey,
    StdoutPlace,
    parse_place,
    sign,
    stores,
)

KEY = SigningKey("bursar/aa", bytes(range(32)))
Make = Callable[[Path], Place]


def note(size: int) -> str:
    """The note of entry `size`."""
    return sign(Checkpoint("bursar/aa", size, size.to_bytes(32)), KEY)


def file_place(folder: Path) -> FilePlace:
    """A history file."""
    return FilePlace("file:history", folder / "history")


def git_place(folder: Path) -> GitPlace:
    """A folder of its own."""
    return GitPlace("git:repository", folder / "repository")


kept = pytest.mark.parametrize("make", [file_place, git_place])


def git(folder: Path, *arguments: str) -> str:
    """Return what git prints, run by somebody who has a name."""
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    return subprocess.run(
        ["git", "-C", str(folder), *who, *arguments],  # noqa: S607
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@kept
def test_notes_come_back_in_order(tmp_path: Path, make: Make) -> None:
    """All of them, whoever made the place, and making it again loses none."""
    place = make(tmp_path)
    place.create()
    assert place.read() == ()
    for size in (1, 2, 3):
        place.write(note(size))
        place.create()
    assert make(tmp_path).read() == (note(1), note(2), note(3))


@kept
def test_a_place_that_is_not_there_is_not_made_by_writing(tmp_path: Path, make: Make) -> None:
    """A disk that is not mounted is an error and not the beginning of an empty history."""
    place = make(tmp_path)
    assert place.read() == ()
    with pytest.raises(PlaceError, match=place.name):
        place.write(note(1))
    assert not any(tmp_path.iterdir())
    with pytest.raises(PlaceError, match="No such file"):
        make(tmp_path / "not mounted").create()


@kept
def test_two_writers_take_turns(tmp_path: Path, make: Make) -> None:
    """bursar-admin beside the server: no note is lost or mixed with another."""
    place = make(tmp_path)
    place.create()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda size: make(tmp_path).write(note(size)), range(1, 13)))
    assert sorted(place.read()) == sorted(map(note, range(1, 13)))


@kept
def test_a_place_that_cannot_be_read_says_so(tmp_path: Path, make: Make) -> None:
    """And not that it is empty."""
    place = make(tmp_path)
    place.create()
    place.write(note(1))
    if isinstance(place, FilePlace):
        place.path.unlink()
        place.path.mkdir()
    else:
        (tmp_path / "repository" / ".git" / "objects").rename(tmp_path / "repository" / ".git" / "gone")
        (tmp_path / "repository" / ".git" / "objects").mkdir()
    with pytest.raises(PlaceError, match=place.name):
        place.read()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_a_history_file_survives_any_cut(tmp_path: Path, data: st.DataObject) -> None:
    """A power cut at any byte, and again: whole notes stay, torn ones are passed over, and new ones come behind."""
    place = file_place(tmp_path)
    place.path.write_bytes(b"")
    durable: list[str] = []
    unended: set[str] = set()  # whole but for the end of their paragraph: they count once something came behind them
    for size in range(1, data.draw(st.integers(2, 8))):
        before = place.path.stat().st_size
        place.write(note(size))
        content = place.path.read_bytes()
        cut = data.draw(st.integers(before, len(content)) | st.integers(len(content) - 3, len(content)))
        place.path.write_bytes(content[:cut])
        durable += [note(size)] if cut == len(content) else []
        unended |= {note(size)} if len(content) - 2 <= cut < len(content) else set()
        assert [text for text in place.read() if text not in unended] == durable
    place.write(note(100))
    assert [text for text in place.read() if text not in unended] == [*durable, note(100)]


def test_a_torn_note_is_marked_and_not_removed(tmp_path: Path) -> None:
    """The file is only ever appended to, so that it can be one that the system lets only grow."""
    place = file_place(tmp_path)
    place.create()
    place.write(note(1))
    with place.path.open("a") as file:
        file.write(note(2)[:100])
    torn = place.path.read_text()
    place.write(note(3))
    assert place.path.read_text().startswith(torn)
    assert place.read() == (note(1), note(3))


def test_a_mark_hides_no_whole_note(tmp_path: Path) -> None:
    """A writer who puts it behind a note is not rid of the note."""
    place = file_place(tmp_path)
    place.create()
    place.write(note(1))
    with place.path.open("a") as file:
        file.write(f"{stores._CUT_OFF}\n\n")
    assert place.read() == (note(1),)


def test_what_is_no_note_is_given_as_it_is(tmp_path: Path) -> None:
    """An edited history is the verifier's business: nothing in the middle is passed over."""
    place = file_place(tmp_path)
    place.create()
    place.write(note(1))
    with place.path.open("a") as file:
        file.write("scribble\n\nmore\n\n— not a signature\n\n")
        file.write(f"{note(2)}\n")
    assert place.read() == (note(1), "scribble\n\nmore\n\n— not a signature\n", note(2))
    place.path.write_bytes(b"\xff" + place.path.read_bytes())
    assert place.read()[0] == "\ufffd" + note(1)


def test_a_history_file_is_its_owners(tmp_path: Path) -> None:
    """0600; a file that was there keeps its mode."""
    place = file_place(tmp_path)
    place.create()
    assert place.path.stat().st_mode & 0o777 == 0o600
    place.path.chmod(0o644)
    place.create()
    assert place.path.stat().st_mode & 0o777 == 0o644


def test_a_full_disk_is_an_error_and_leaves_what_was_there(tmp_path: Path) -> None:
    """`/dev/full` says ENOSPC to every write."""
    place = FilePlace("file:full", Path("/dev/full"))
    with pytest.raises(PlaceError, match="file:full: No space left"):
        place.write(note(1))


def test_a_folder_in_a_work_tree_of_others_is_used_as_it_is(tmp_path: Path) -> None:
    """Several servers may share a repository, each with a folder; other files and branches are left alone."""
    tree = tmp_path / "tree"
    tree.mkdir()
    git(tree, "init", "--quiet")
    (tree / "other").write_text("staged by somebody")
    git(tree, "add", "other")
    places = [GitPlace(f"git:{name}", tree / name) for name in ("one server", "two")]
    for size, place in enumerate(places, 1):
        place.create()
        place.write(note(size))
    assert [place.read() for place in places] == [(note(1),), (note(2),)]
    assert git(tree, "status", "--short") == "A  other\n"
    assert git(tree, "log", "--format=%an %s", "--", "two") == "bursar checkpoint of entry 2\n"


def test_notes_of_all_branches_are_read(tmp_path: Path) -> None:
    """A branch that was reset does not take back what another reference has; a removed file removes no note."""
    place = git_place(tmp_path)
    place.create()
    for size in (1, 2):
        place.write(note(size))
    git(place.folder, "branch", "kept")
    git(place.folder, "reset", "--hard", "--quiet", "HEAD~1")
    assert place.read() == (note(1), note(2))
    git(place.folder, "rm", "--quiet", "checkpoint")
    git(place.folder, "commit", "--quiet", "-m", "removed")
    place.write(note(3))
    assert sorted(place.read()) == [note(1), note(2), note(3)]


def test_the_same_note_twice_is_no_failure(tmp_path: Path) -> None:
    """There is nothing to commit then."""
    place = git_place(tmp_path)
    place.create()
    for _ in range(2):
        place.write(note(1))
    assert place.read() == (note(1),)


def test_nobodys_settings_make_a_commit_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a user's signing key, hooks and ignored files, nor the environment of a hook that bursar runs in."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("pre-commit", "commit-msg", "post-commit"):
        (hooks / name).write_text("#!/bin/sh\nexit 1\n")
        (hooks / name).chmod(0o700)
    home = tmp_path / "home"
    home.mkdir()
    (home / "ignore").write_text("*\n")
    (home / ".gitconfig").write_text(
        f"[commit]\ngpgSign = true\n[user]\nuseConfigOnly = true\n[core]\nhooksPath = {hooks}\n"
        f"excludesFile = {home}/ignore\nautocrlf = true\n[gpg]\nprogram = /bin/false\n"
    )
    monkeypatch.setenv("HOME", str(home))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    place = git_place(tmp_path)
    place.create()
    place.write(note(1))
    assert place.read() == (note(1),)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_repository_of_another_user_is_used(tmp_path: Path) -> None:
    """Git would refuse it as unsafe; the operator named it."""
    place = git_place(tmp_path)
    place.create()
    for path in (place.folder, *place.folder.rglob("*")):
        os.chown(path, 12345, 12345)
    place.write(note(1))
    assert place.read() == (note(1),)


def test_a_hook_of_the_repository_runs_after_a_commit(tmp_path: Path) -> None:
    """A hook pushes a checkpoint further; its failure is not the commit's."""
    place = git_place(tmp_path)
    place.create()
    hook = place.folder / ".git" / "hooks" / "post-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/pushed'\nexit 1\n")
    hook.chmod(0o700)
    place.write(note(1))
    assert (tmp_path / "pushed").exists()


def test_a_git_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that it started ends, too; the place is reported, and free for the next note."""
    place = git_place(tmp_path)
    place.create()
    hook = place.folder / ".git" / "hooks" / "prepare-commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexec sleep 600\n")
    hook.chmod(0o700)
    monkeypatch.setattr(stores, "_GIT_SECONDS", 1.0)
    with pytest.raises(PlaceError, match="did not end"):
        place.write(note(1))
    hook.unlink()
    monkeypatch.undo()
    (place.folder / ".git" / "index.lock").unlink(missing_ok=True)
    place.write(note(2))
    assert place.read() == (note(2),)


def test_a_git_that_fails_or_is_missing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is git's own, or has a hint."""
    place = git_place(tmp_path)
    place.create()
    (place.folder / ".git" / "index.lock").touch()
    with pytest.raises(PlaceError, match="git:repository: git failed"):
        place.write(note(1))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PlaceError, match="is it installed"):
        place.read()


def test_standard_output_gets_the_note_and_gives_none_back(capsys: pytest.CaptureFixture[str]) -> None:
    """It is for collectors."""
    place = StdoutPlace()
    place.create()
    place.write(note(1))
    assert capsys.readouterr().out == note(1) + "\n"
    assert (place.read(), place.readable) == ((), False)


@pytest.mark.parametrize("target", ["/dev/full", "closed"])
def test_a_standard_output_that_does_not_take_it_is_an_error(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other places that cannot be written have the same error."""
    stream = open("/dev/full" if target != "closed" else "/dev/null", "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if target == "closed":
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(PlaceError, match="stdout"):
        StdoutPlace().write(note(1))
    monkeypatch.undo()
    try:
        stream.close()
    except OSError:
        stream.close()


def test_places_are_named_by_a_text(tmp_path: Path) -> None:
    """Relative paths start from the folder that is given."""
    assert parse_place("file:history", tmp_path) == FilePlace("file:history", tmp_path / "history")
    assert parse_place("file:/mnt/a:b", tmp_path) == FilePlace("file:/mnt/a:b", Path("/mnt/a:b"))
    assert parse_place("git:witness", tmp_path) == GitPlace("git:witness", tmp_path / "witness")
    assert parse_place("stdout", tmp_path) == StdoutPlace()


@pytest.mark.parametrize("text", ["", "file", "file:", "git:", "stdout:x", "s3:bucket", "/history", "file:a\nb"])
def test_other_texts_name_no_place(text: str) -> None:
    """The message lists what may be given."""
    with pytest.raises(ValueError, match="file:PATH"):
        parse_place(text, Path())
