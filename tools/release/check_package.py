"""Build the wheel and the sdist; install the wheel alone and use it.

    python -m tools.release.check_package [FOLDER]

With a folder, what was built and found good is kept there, with the changelog's notes of this version.

The new environment sees the dependencies of this one through a path file, and not this source: fvnce itself
can only come from the wheel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Folders of the repository that are in the sdist and not in the wheel.
OUTSIDE = {"benchmarks", "docs", "experiments", "results", "tests", "tools"}


def build(folder: Path) -> tuple[Path, Path]:
    """Build sdist and wheel without isolation, so that nothing is downloaded; check their metadata and README."""
    run = {"cwd": ROOT, "check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--wheel", "--sdist", "--outdir", folder], **run)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist], **run)
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> None:
    """Check that both contain every file of the package and its templates, and the wheel nothing else."""
    modules = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "fvnce").rglob("*")
        if path.is_file() and path.suffix in (".py", ".html", ".css", ".md", ".typed")
    }
    for suffix in (".html", ".css", ".md"):
        if not any(name.endswith(suffix) for name in modules):
            sys.exit(f"the package must hold the templates of its pages, found no {suffix} file")
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        source = {name.partition("/")[2] for name in archive.getnames()}
    missing = sorted(modules - inside) + sorted(f"src/{name}" for name in modules if f"src/{name}" not in source)
    missing += sorted(folder for folder in OUTSIDE if not any(name.startswith(f"{folder}/") for name in source))
    foreign = sorted(name for name in inside if not name.startswith("fvnce") or OUTSIDE & set(Path(name).parts))
    foreign += sorted(name for name in inside if name.endswith((".npz", ".npy", ".csv", ".gz", ".safetensors")))
    if missing or foreign or "fvnce/py.typed" not in inside:
        sys.exit(f"the wheel or sdist is not what it should be: missing {missing}, foreign {foreign}")


def install(wheel: Path, folder: Path) -> Path:
    """Make an environment with the wheel and the dependencies of this one; return its Python."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    scheme = {"base": str(folder), "platbase": str(folder), "installed_base": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=scheme))
    here = Path(sysconfig.get_path("purelib"))
    # The wheel is unpacked into the environment itself and so comes before the borrowed folder; path files that the
    # borrowed folder holds, such as that of an editable fvnce, are not followed.
    (site / "borrowed.pth").write_text(f"{here}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--ignore-installed", str(wheel)], check=True)
    return python


def use(python: Path, folder: Path) -> None:
    """Run the installed command from another folder."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    where = [str(python), "-c", "import fvnce; print(fvnce.__file__)"]
    installed = subprocess.run(where, cwd=folder, env=clean, check=True, capture_output=True, text=True).stdout.strip()
    if not Path(installed).resolve().is_relative_to(python.parent.parent.resolve()):
        sys.exit(f"fvnce must come from the wheel, found {installed}")
    command = [str(python.parent / "fvnce"), "reproduce", "pairs", "--out", str(folder / "out")]
    subprocess.run(command, cwd=folder, env=clean, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    figure = folder / "out" / "pairs.png"
    if not figure.is_file() or not figure.read_bytes().startswith(b"\x89PNG"):
        sys.exit(f"fvnce reproduce pairs must draw {figure}, found none")
    (folder / "table.csv").write_text("a,b\n" + "".join(f"{i % 7},{i % 5}\n" for i in range(40)))
    for words in (
        ["fit", "table.csv", "--set", "n_trees=5", "--out", "run", "-q"],
        ["score", "run", "table.csv", "-q"],
    ):
        done = subprocess.run(
            [command[0], *words], cwd=folder, env=clean, check=True, stdout=subprocess.PIPE, text=True
        )
    lines, page = len(done.stdout.splitlines()), (folder / "run" / "report.html").read_text("utf-8")
    if lines != 41 or "Top anomalies" not in page:
        sys.exit(f"fvnce fit and score must give 41 lines and a page with its top anomalies, found {lines} lines")


def keep(wheel: Path, sdist: Path, folder: Path) -> None:
    """Copy both to ``folder``, and write the changelog of this version next to it."""
    version = wheel.name.split("-")[1]
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    notes = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |\Z)", changes, re.MULTILINE | re.DOTALL)
    if notes is None:
        sys.exit(f"CHANGELOG.md must have a section [{version}], found none: name the Unreleased one")
    folder.mkdir(parents=True, exist_ok=True)
    for path in (wheel, sdist):
        shutil.copy(path, folder)
    (folder.parent / f"{folder.name}-notes.md").write_text(notes[1].strip() + "\n", "utf-8")


def main() -> None:
    """Build, check, install and use the package, and keep it if a folder is given."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sdist = build(folder)
        check_contents(wheel, sdist)
        use(install(wheel, folder / "environment"), folder)
        if len(sys.argv) > 1:
            keep(wheel, sdist, Path(sys.argv[1]))
        print(f"{wheel.name} and {sdist.name}: built, installed, used")


if __name__ == "__main__":
    main()
