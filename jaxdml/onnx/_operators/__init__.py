"""The ONNX operators; importing this package adds them to the table of `_table.py`."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
