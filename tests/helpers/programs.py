"""A cache of compiled programs that all processes of a test run share: many tests compile the same programs."""

import tempfile

import jax
import pytest

FOLDER = pytest.StashKey[str]()


def share_programs(config):
    """Sets JAX's cache to the folder of the run, which is removed when the run ends."""
    if hasattr(config, "workerinput"):
        folder = config.workerinput["programs"]
    else:
        made = tempfile.TemporaryDirectory(prefix="jaxdml-tests-")
        config.add_cleanup(made.cleanup)
        folder = config.stash[FOLDER] = made.name
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Passes the folder to each process of xdist."""
    node.workerinput["programs"] = node.config.stash[FOLDER]
