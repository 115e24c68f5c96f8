"""The compiled programs of one run, which all its processes share: many tests compile the same programs."""

import tempfile

import jax
import pytest

FOLDER = pytest.StashKey[str]()


def share_programs(config):
    """Tells JAX the folder of the run; it is removed when the run ends."""
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
    """Tells each process of xdist the folder."""
    node.workerinput["programs"] = node.config.stash[FOLDER]
