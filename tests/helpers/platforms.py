"""Features of operating systems and processors that only some tests need."""

import platform
import sys

import pytest

IS_WINDOWS = sys.platform == "win32"
posix = pytest.mark.skipif(IS_WINDOWS, reason="Windows has no make, no sh and no named pipes in folders")
on_x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="AVX2 is of x86-64")
between_processes = pytest.mark.skipif(IS_WINDOWS, reason="jaxlib has no collectives between processes on Windows")


def symlink(link, target):
    """Makes a symbolic link; skips the test if Windows does not allow its user to make links."""
    try:
        link.symlink_to(target, target_is_directory=target.is_dir())
    except OSError:
        if not IS_WINDOWS:
            raise
        pytest.skip("Windows lets administrators make symbolic links, and others in developer mode")
