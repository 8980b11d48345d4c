"""The package and its command line, as a user meets them."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import fvnce
from fvnce.app.cli import SUMMARIES
from tools.pages import run_page

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "fvnce", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"COLUMNS": "100"},
        check=False,
    )


def test_public_names_exist():
    for name in fvnce.__all__:
        assert getattr(fvnce, name) is not None
    assert set(fvnce.__all__) <= set(dir(fvnce))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fvnce.nothing


def test_there_are_few_public_names_and_type_checkers_see_the_same():
    assert len(fvnce.__all__) == len(set(fvnce.__all__)) <= 32
    tree = ast.parse((ROOT / "src" / "fvnce" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    homes = {alias.asname: node.module for node in block.body for alias in node.names}
    assert homes == fvnce._HOME | dict.fromkeys(fvnce._MODULES)


@pytest.mark.parametrize("name", fvnce._OLD_NAMES)
def test_a_name_that_left_the_top_is_served_with_a_warning(name):
    room, _, new_name = fvnce._OLD_NAMES[name].partition(".")
    with pytest.warns(
        DeprecationWarning, match=rf"fvnce\.{name} is deprecated .* use fvnce\.{room}\.{new_name}$"
    ) as caught:
        old = getattr(fvnce, name)
    assert old is getattr(getattr(fvnce, room), new_name)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("statement", ["import fvnce", "from fvnce.app.cli import main"])
def test_starting_imports_nothing_heavy(statement):
    """What makes ``fvnce --help`` start at once."""
    heavy = "{'torch', 'numpy', 'matplotlib', 'sklearn'}"
    code = f"import sys; {statement}; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_help_of_the_program_imports_no_command():
    code = (
        "import sys; from fvnce.app.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(sorted(m for m in sys.modules if m.startswith('fvnce')), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr.strip() == str(["fvnce", "fvnce._version", "fvnce.app", "fvnce.app.cli"])
    # The summaries it shows are those of the commands' own help.
    for name, summary in SUMMARIES.items():
        assert " ".join(command(name, "--help").stdout.split()).partition("[OPTIONS]")[2].find(summary) > 0
    assert [line.split()[0] for line in re.findall(r"^  \w.*", run.stdout.partition("Commands:")[2], re.MULTILINE)] == [
        *SUMMARIES
    ]


def test_version_and_help():
    assert command("--version").stdout == f"fvnce {fvnce.__version__}\n"
    shown = command("--help")
    assert shown.returncode == 0
    assert "reproduce" in shown.stdout
    assert "outliers in tables" in shown.stdout


def test_without_arguments_the_help_is_shown():
    run = command()
    assert run.returncode == 0
    assert run.stdout == command("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nonsense"], "No such option: --nonsense"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["reproduce", "everything"], "unknown item 'everything'; the items are pairs, losses, table"),
        (["reproduce", "--out"], "'--out' requires an argument"),
        (["reproduce", "--out", "file"], "--out must be a folder, 'file' is a file"),
    ],
)
def test_mistakes_are_one_line(arguments, words, tmp_path):
    (tmp_path / "file").touch()
    run = command(*arguments, cwd=tmp_path)
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert run.stderr.startswith("fvnce: ")
    assert words in run.stderr


@pytest.mark.slow
def test_reproduce_draws_the_two_figures(tmp_path):
    run = command("reproduce", "pairs", "losses", "--out", tmp_path / "a" / "b")
    assert run.returncode == 0, run.stderr
    assert "pairs …" in run.stderr
    written = run.stdout.split()
    assert [Path(p).name for p in written] == ["pairs.png", "pairs.pdf", "losses.png", "losses.pdf"]
    for path in map(Path, written):
        if path.suffix == ".png":
            image = imread(path)[..., :3]
            assert image.shape[1] > 1000
            # Four curves of four colours, each drawn in both panels.
            for half in (image[:, : image.shape[1] // 2], image[:, image.shape[1] // 2 :]):
                for colour in ("0b2e59", "c23b22", "e8a33d", "555555"):
                    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)])
                    assert (np.abs(half - rgb).max(-1) < 0.02).sum() > 200
        else:
            assert path.read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_the_same_figure_is_the_same_file(tmp_path):
    for name in ("a", "b"):
        assert command("reproduce", "pairs", "--out", tmp_path / name).returncode == 0
    for suffix in ("png", "pdf"):
        first, second = ((tmp_path / name / f"pairs.{suffix}").read_bytes() for name in ("a", "b"))
        assert first == second


def test_readme_commands_come_first_and_exist():
    readme = (ROOT / "README.md").read_text()
    shown = re.findall(r"^\s*(make \w+)", readme, flags=re.MULTILINE)
    assert shown[:2] == ["make run", "make test"]
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_constraints_pin_what_pyproject_leaves_open():
    pins = (ROOT / "constraints.txt").read_text()
    assert "torch==2.13.0\n" in pins
    project = (ROOT / "pyproject.toml").read_text()
    assert '"torch>=2.6"' in project
    dependencies = re.search(r"^dependencies = \[(.*?)\]", project, flags=re.DOTALL | re.MULTILINE).group(1)
    for name, _ in re.findall(r'"([\w-]+)>=([\d.]+)"', dependencies):
        assert re.search(rf"^{name}==", pins, flags=re.MULTILINE | re.IGNORECASE), name


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:::pytorch_lightning")
@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    """From top to bottom, each block with what the blocks before it left; and it prints what the page shows."""
    if "import pytorch_lightning" in page.read_text():
        folder = Path(sys.prefix) / "lightning"
        if not folder.exists():
            pytest.skip("pytorch-lightning is installed by make test alone")
        monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    assert run_page.differences(page.read_text("utf-8"), run_page.rendered(page)) == []


@pytest.mark.slow
def test_the_script_for_several_machines_runs_on_two_processes(tmp_path):
    """As the page has it, but for the folder and the length of the run."""
    page = (ROOT / "docs" / "models" / "train.md").read_text()
    script = re.search(r"```py\n(# train\.py\n.*?)```", page, flags=re.DOTALL).group(1)
    assert "/shared" in script
    assert "epochs=20" in script
    (tmp_path / "train.py").write_text(script.replace("/shared", str(tmp_path)).replace("epochs=20", "epochs=2"))
    rng = np.random.default_rng(0)
    np.save(tmp_path / "rows.npy", rng.normal(size=(3000, 6)).astype(np.float32))
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert list((tmp_path / "run").rglob("*.safetensors"))


def test_the_readme_shows_code():
    assert "```python\n" in (ROOT / "README.md").read_text()
