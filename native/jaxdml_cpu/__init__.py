"""Native CPU kernels of jaxdml: a library of XLA custom calls, and the sizes of packed weights.

This package is optional. Only jaxdml imports it.
"""

import ctypes
from importlib import resources

__version__ = "0.10.0"

HANDLERS = (
    "matmul",
    "convolve",
    "add",
    "quantized",
    "dequantized",
    "extremes",
    "quantized_rows",
    "row_sums",
    "means",
    "max_pool",
    "looked_up",
    "products",
    "pack_matrix",
    "pack_filter",
    "dequantize_blocks",
    "pack_blocks",
    "matmul_blocks",
    "rows",
    "attention",
    "chained",
    "lstm",
)


class Library:
    """The loaded library.

    Attributes:
      handlers: maps names of custom calls to functions that `jax.ffi.pycapsule` accepts.
      built_with: the version of jaxlib whose headers the library was compiled with.
      kernels: the name of the chosen instruction set; None if no kernels run on this processor.
    """

    def __init__(self, path: str, name: str = "") -> None:
        """Loads the library and chooses kernels by name; an empty name chooses the fastest that run here."""
        loaded = ctypes.CDLL(path)
        self.handlers = {handler: loaded[f"jaxdml_cpu_{handler}"] for handler in HANDLERS}
        choose, built_with = loaded["jaxdml_cpu_choose"], loaded["jaxdml_cpu_built_with"]
        choose.restype = built_with.restype = ctypes.c_char_p
        self._matrix_bytes, self._filter_bytes = loaded["jaxdml_cpu_matrix_bytes"], loaded["jaxdml_cpu_filter_bytes"]
        self._matrix_bytes.restype = self._filter_bytes.restype = ctypes.c_int64
        chosen = choose(name.encode())
        self.kernels = chosen and chosen.decode()
        self.built_with = built_with().decode()

    def matrix_bytes(self, depth: int, columns: int) -> int:
        """The size of a packed matrix [depth, columns] in bytes."""
        return int(self._matrix_bytes(ctypes.c_int64(depth), ctypes.c_int64(columns)))

    def filter_bytes(self, shape: tuple[int, int, int, int], group_count: int) -> int:
        """The size of a packed filter [outputs, channels of a group, rows, columns] in bytes."""
        return int(self._filter_bytes((ctypes.c_int64 * 4)(*shape), ctypes.c_int64(group_count)))


def load(name: str = "") -> Library:
    """Loads the library that was built with this package."""
    with resources.as_file(resources.files(__name__) / "libjaxdml_cpu.so") as path:
        return Library(str(path), name)
