"""JSON values with random changes."""

import copy

NUMBERS = [0, 1, 2, 3, 4, 7, 8, 255, 256, 2**16, 2**31, 2**32 - 1, 2**32, 2**64, 10**30, -1, 0.5, 1e300, True]
WORDS = [
    "", "x", "UINT8", "INT8", "FLOAT32", "FLOAT16", "INT32", "UINT4", "UNKNOWN", "nan", "inf", "NONE", "OWNED_BY_DML",
    "../up.npy", "/tmp/absolute.npy", "output", "a/b/c.npy", "x.bin", ".", "..", "model.json", "\0", "~/home.npy",
    "input", "dispatch", "print", "writeFile",
]  # fmt: skip
VALUES = [
    *NUMBERS,
    *WORDS,
    None,
    [],
    {},
    [1],
    [0],
    [1, 1, 2, 2],
    [0, 0, 0, 0],
    {"name": "input"},
    {"sourcePath": "../x"},
]


def places(value, path=()):
    """The path of everything in a JSON value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


def mutated(rng, value):
    """value with one to three changes: a member replaced, dropped, renamed, copied, or changed by a small number."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        every = list(places(value))
        *path, last = every[rng.integers(len(every))]
        parent = value
        for key in path:
            parent = parent[key]
        kind = rng.integers(6)
        if kind == 0:
            del parent[last]
        elif kind == 1 and isinstance(parent, dict):
            parent[last + rng.choice(["", "s", "_"])] = parent.pop(last)
        elif kind == 2:
            source = value
            for key in every[rng.integers(len(every))]:
                source = source[key] if isinstance(source, dict | list) else source
            parent[last] = copy.deepcopy(source)
        elif kind == 3 and isinstance(parent[last], int):
            parent[last] += int(rng.choice([-1, 1, 2]))
        elif kind == 4 and isinstance(parent, list):
            parent.insert(last, parent[last])
        else:
            parent[last] = VALUES[rng.integers(len(VALUES))]
        if not list(places(value)):
            break
    return value
