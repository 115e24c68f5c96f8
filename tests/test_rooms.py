"""Each folder of the package stays small enough to read: limits on rooms, floors and arrows, and no circle.

A room is a module of the folder, or one of its subfolders as a whole. An arrow is an import of one room by another. A
room that imports no other is on floor 1; each other room is one floor above the highest room that it imports.
"""

import ast
import graphlib
from pathlib import Path

import pytest

import jaxdml

PACKAGE = Path(jaxdml.__file__).parent
# folder: rooms, floors and arrows at most
LIMITS = {
    "jaxdml": (20, 8, 62),
    "jaxdml/_graph": (19, 5, 36),
    "jaxdml/onnx": (13, 6, 30),
    "jaxdml/ptq": (12, 7, 36),
}


def rooms_of(folder):
    """The files of each room."""
    rooms = {path.stem: [path] for path in folder.glob("*.py")}
    for path in folder.iterdir():
        if files := sorted(path.rglob("*.py")):
            rooms[path.name] = files
    return rooms


def imported(path):
    """The modules that a file imports, anywhere in the file, and the names that it imports from them.

    Imports only for type checkers are left out.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "_typing.TYPE_CHECKING"):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def arrows_of(folder, root):
    """For each room the rooms that it imports; a name of the folder itself is in its `__init__`."""
    rooms, prefix = rooms_of(folder), ".".join(folder.relative_to(root).parts)
    arrows = {room: set() for room in rooms}
    for room, files in rooms.items():
        for name in (name for path in files for name in imported(path)):
            if name == prefix or name.startswith(f"{prefix}."):
                first = name.removeprefix(prefix).removeprefix(".").split(".")[0]
                arrows[room].add(first if first in rooms else "__init__")
        arrows[room].discard(room)
    return arrows


def measured(folder, root):
    """How many rooms, floors and arrows a folder has; a circle is an error."""
    arrows, floors = arrows_of(folder, root), {}
    for room in graphlib.TopologicalSorter(arrows).static_order():
        floors[room] = 1 + max((floors[other] for other in arrows[room]), default=0)
    return len(arrows), max(floors.values()), sum(map(len, arrows.values()))


def beyond(numbers, limits):
    """The numbers of a folder that exceed its limits, in words."""
    kinds = zip(("rooms", "floors", "arrows"), numbers, limits, strict=True)
    return [f"{number} {kind}, at most {limit}" for kind, number, limit in kinds if number > limit]


@pytest.mark.parametrize("name", LIMITS)
def test_a_folder_has_few_rooms_floors_and_arrows_and_no_circle(name):
    root = PACKAGE.parent
    found = beyond(measured(root / name, root), LIMITS[name])
    assert not found, f"{name} has {' and '.join(found)}: {arrows_of(root / name, root)}"


@pytest.fixture
def house(tmp_path):
    """Four rooms on three floors: `top` imports `middle` and the folder `ground`, `middle` imports `ground`."""
    folder = tmp_path / "house"
    files = {
        "__init__.py": "",
        "top.py": "import house.middle\nfrom house.ground.stone import hard",
        "middle.py": "def f():\n    from house import ground",
        "ground/stone.py": "from house.ground.sand import soft",
        "ground/sand.py": "import os",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_rooms_floors_and_arrows_are_counted(house):
    assert measured(house, house.parent) == (4, 3, 3)
    (house / "one_more.py").write_text("from house import CONSTANT, top")
    assert measured(house, house.parent) == (5, 4, 5)


def test_too_many_rooms_floors_and_arrows_are_seen(house):
    numbers = measured(house, house.parent)
    assert beyond(numbers, (4, 3, 3)) == []
    assert beyond(numbers, (3, 2, 2)) == ["4 rooms, at most 3", "3 floors, at most 2", "3 arrows, at most 2"]


def test_a_circle_is_seen(house):
    (house / "ground" / "sand.py").write_text("from house.top import roof")
    with pytest.raises(graphlib.CycleError, match="'top'"):
        measured(house, house.parent)
