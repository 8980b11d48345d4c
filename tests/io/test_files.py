"""A file is written whole or not at all, and never through a link that someone laid in its way."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fvnce.io import atomic_write, write_text
from fvnce.io.files import locked, sweep


def test_a_link_in_the_way_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for place in (tmp_path / "report.html", tmp_path / "dangling"):
        place.symlink_to(victim if place.name == "report.html" else tmp_path / "made")
        write_text(place, "page")
        assert not place.is_symlink()
        assert place.read_text() == "page"
    assert victim.read_text() == "precious"
    assert not (tmp_path / "made").exists()


def test_a_link_under_the_temporary_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr("fvnce.io.files.secrets.token_hex", lambda n: "0" * 2 * n)
    (tmp_path / f".fvnce-{'0' * 16}.incomplete").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_text(tmp_path / "report.html", "page")
    assert victim.read_text() == "precious"


def test_temporary_names_are_random_and_beside_the_target(tmp_path: Path) -> None:
    seen = set()
    for _ in range(20):
        with atomic_write(tmp_path / "scores.csv", "w") as file:
            seen |= {Path(name).name for name in os.listdir(tmp_path)} - {"scores.csv"}
            file.write("row,score\r\n")
    assert len(seen) == 20
    assert os.listdir(tmp_path) == ["scores.csv"]
    assert (tmp_path / "scores.csv").read_bytes() == b"row,score\r\n"


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failed_block_leaves_the_earlier_file(tmp_path: Path, failure: type[BaseException]) -> None:
    write_text(tmp_path / "a", "first")

    def write() -> None:
        with atomic_write(tmp_path / "a") as file:
            file.write(b"sec")
            raise failure

    with pytest.raises(failure):
        write()
    assert (tmp_path / "a").read_text() == "first"
    assert os.listdir(tmp_path) == ["a"]


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_long_name_can_be_written(tmp_path: Path) -> None:
    write_text(tmp_path / ("n" * 255), "x")
    assert (tmp_path / ("n" * 255)).read_text() == "x"


def test_a_folder_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(IsADirectoryError, match=r"run.*folder"):
        write_text(tmp_path / "run", "x")


def test_a_place_that_cannot_be_written_is_called_as_it_was_named(tmp_path: Path) -> None:
    target = tmp_path / "nowhere" / "scores.csv"
    with pytest.raises(FileNotFoundError) as caught, atomic_write(target):
        pass
    assert caught.value.filename == str(target)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder in which nobody can make a file")
def test_a_folder_that_cannot_be_locked_is_called_as_it_was_named() -> None:
    with pytest.raises(OSError, match="/proc/run'") as caught, locked(Path("/proc/.run.lock"), Path("/proc/run")):
        pass
    assert caught.value.filename == "/proc/run"


def test_sweeping_removes_only_what_this_package_left(tmp_path: Path) -> None:
    left = tmp_path / ".fvnce-0123456789abcdef.incomplete"
    left.write_text("half")
    own = [tmp_path / ".incomplete-notes", tmp_path / ".fvnce-mine.incomplete", tmp_path / "a.incomplete"]
    for path in own:
        path.write_text("kept")
    folder = tmp_path / ".fvnce-fedcba9876543210.incomplete"
    folder.mkdir()
    sweep(tmp_path)
    assert not left.exists()
    assert all(path.read_text() == "kept" for path in own)
    assert folder.is_dir()
