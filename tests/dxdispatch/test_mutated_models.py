"""Thousands of mutated models: each gives a result, or an error that says where.

No other exception, no hang, and no file outside the output folder.
"""

import copy
import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import jaxdml as dml
from helpers.mutated import mutated
from helpers.platforms import symlink
from jaxdml import dxdispatch, examples

EXAMPLES = Path(examples.__file__).parent / "dxdispatch"


@pytest.fixture
def folder(tmp_path):
    """Examples among links that lead out, and files outside that must not be touched."""
    shutil.copytree(EXAMPLES, tmp_path / "models")
    (tmp_path / "outside").mkdir()
    for path in ("up.npy", "x", "outside/x.npy"):
        (tmp_path / path).write_bytes(b"precious")
    symlink(tmp_path / "models" / "link.npy", tmp_path / "up.npy")
    symlink(tmp_path / "models" / "away", tmp_path / "outside")
    return tmp_path


def escapes(folder):
    """Paths that lead out of the folders, from the models and from the output."""
    return ["../up.npy", "../x", "../../x", "../new.npy", "a/../../new.npy", str(folder / "new.npy"), str(folder / "x"),
            "link.npy", "away/x.npy", "away/new.npy", "..", "/", "../output/../new.npy", r"..\up.npy", r"away\x.npy",
            "C:new.npy", r"\\?\C:\new.npy", "NUL", "x.npy:new"]  # fmt: skip


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.rare
def test_mutated_models(folder):
    """Each is loaded; it is run only if it needs no program other than those of the examples and a few others."""
    rng = np.random.default_rng(0)
    paths = sorted((folder / "models").glob("*.json"))
    valid = [json.loads(json.dumps(dxdispatch._files.read_json(path).value)) for path in paths]
    before = files(folder)
    ran, seen, paths_at_fault, outward = 0, set(), [], 0
    for number in range(2000):
        path = folder / "models" / "model.json"
        original = valid[rng.integers(len(valid))]
        if number % 4:
            written = mutated(rng, original)
        else:  # only one path is wrong
            written, out = copy.deepcopy(original), escapes(folder)[rng.integers(len(escapes(folder)))]
            if number % 8:
                written["commands"].append({"type": "writeFile", "resource": "output", "targetPath": out})
            else:
                written["resources"]["more"] = {"initialValuesDataType": "UINT8", "initialValues": {"sourcePath": out}}
            outward += 1
        (folder / "output").mkdir()
        symlink(folder / "output" / "link.npy", folder / "up.npy")
        symlink(folder / "output" / "away", folder / "outside")
        path.write_text(json.dumps(written), encoding="utf-8")
        before[path] = path.read_bytes()
        start = time.monotonic()
        try:
            model = dxdispatch.load(path, maximum_bytes=2**20)
            key = repr([dispatchable.operator for dispatchable in model.dispatchables.values()])
            if key in seen or len(seen) < 40:
                seen.add(key)
                model.run(output_dir=folder / "output", show=lambda text: None)
                ran += 1
        except dml.DxDispatchError as error:
            paths_at_fault.append(error.path)
        assert time.monotonic() - start < 60
        shutil.rmtree(folder / "output")
        assert files(folder) == before
    assert ran > 100
    assert len(set(paths_at_fault)) > 200
    assert sum(path.endswith(("sourcePath", "targetPath")) for path in paths_at_fault) >= outward == 500


@pytest.mark.rare
def test_mutated_text(folder):
    """Characters of the file itself, changed, dropped and doubled."""
    rng = np.random.default_rng(0)
    text = (folder / "models" / "add.json").read_text(encoding="utf-8")
    path, results = folder / "models" / "model.json", 0
    start = time.monotonic()
    for _ in range(1000):
        place, junk = int(rng.integers(len(text))), '"\\/*{}[],:0\n\0\u2028e-'
        replacement = rng.choice(["", text[place] * 2, junk[rng.integers(len(junk))]])
        path.write_text(text[:place] + str(replacement) + text[place + 1 :], encoding="utf-8")
        try:
            dxdispatch.load(path)
            results += 1
        except dml.DxDispatchError:
            pass
    assert 100 < results < 900
    assert time.monotonic() - start < 100
