"""The wheel has what serving reads, and works outside of a checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.deploy.conftest import ROOT

PACKAGES = ("deploy", "orchestrator", "policies", "workers")
AWAY = (  # for a checkout, an operator or a reader
    "deploy/lab/",
    "deploy/kubernetes/",
    "deploy/Dockerfile",
    "deploy/experiments/",
    "deploy/install_vllm.sh",
)
CACHES = shutil.ignore_patterns("__pycache__", "*.pyc")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=CACHES)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist"]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    (made,) = (folder / "dist").iterdir()
    return made


def test_it_has_the_files_of_its_packages_and_no_other_name(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    wanted = {
        file.relative_to(ROOT).as_posix()
        for name in PACKAGES
        for file in (ROOT / name).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".md"
    }
    assert sorted(name for name in wanted - names if not name.startswith(AWAY)) == []
    assert not any(name.startswith("deploy/lab/") for name in names)


def test_its_command_line_works_outside_of_a_checkout(wheel: Path, tmp_path: Path) -> None:
    ZipFile(wheel).extractall(tmp_path)
    run = "import sys; sys.path.insert(0, '.'); from deploy.cli.main import main; main()"
    command = [sys.executable, "-P", "-c", run, "check-config", "deploy/local.yaml"]
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    ran = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
