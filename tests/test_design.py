"""The statements of docs/design.md and its picture about files and folders are true."""

import re
from pathlib import Path

import jaxdml as dml

PACKAGE = Path(dml.__file__).parent
ROOT = PACKAGE.parent
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
PICTURE = (ROOT / "docs" / "figures" / "architecture.svg").read_text(encoding="utf-8")
FOLDER = re.compile(r"\b_*\w+(?=/)")


def test_each_file_that_the_page_names_is_there():
    named = set(re.findall(r"`([\w/]+\.(?:py|h|cc|md|txt|svg)|[\w/]+/)`", DESIGN))
    assert len(named) > 20
    anywhere = {path.name for folder in (PACKAGE, ROOT / "native" / "src", ROOT / "docs") for path in folder.rglob("*")}
    for name in sorted(named):
        roots = ROOT, PACKAGE, PACKAGE / "ptq"
        assert any((root / name).exists() for root in roots) or ("/" not in name and name in anywhere), name


def test_the_picture_has_every_folder_of_the_package_and_no_other():
    named = {name for text in re.findall(r">([^<]*)<", PICTURE) for name in FOLDER.findall(text)}
    folders = {
        path.name for path in (*PACKAGE.iterdir(), *(PACKAGE / "ptq").iterdir()) if (path / "__init__.py").exists()
    }
    assert named - {"native"} == folders - {"examples", "reference"}
