"""ONNX's own cases of operators: each passes, or is left out for a reason in `backend_nodes`, and then a ModelError.

A case that is left out, and would pass, is an error, too.
"""

from fnmatch import fnmatchcase

import jax
import pytest

from _onnx.backend_nodes import CASES, OPERATORS, Prepared, all_cases, is_supported, operators_of, reason
from jaxdml.errors import ModelError

PARTS = 24
pytestmark = pytest.mark.rare


def problem_of(case):
    """What is wrong with a case, or with its place in a table; None if nothing is."""
    why = reason(case)
    try:
        prepared = Prepared(case)
        prepared.check(prepared.computed())
    except ModelError as error:
        return None if why else f"is refused: {error}"
    except AssertionError as error:
        return str(error)
    return f"passes, though it is left out: {why}" if why else None


@pytest.mark.parametrize("part", range(PARTS))
def test_cases_pass_or_are_left_out_for_a_reason(part):
    with jax.enable_x64(True):
        found = {case.name: problem for case in all_cases()[part::PARTS] if (problem := problem_of(case))}
    assert not found, "\n".join(f"{name}: {problem}" for name, problem in found.items())


def test_every_reason_is_that_of_a_case():
    assert len(all_cases()) > 1800
    assert {reason(case) for case in all_cases()} - {None} == OPERATORS.keys() | CASES.keys()
    for pattern in " ".join(CASES.values()).split():
        assert any(fnmatchcase(case.name, pattern) for case in all_cases()), pattern


def test_operators_left_out_are_those_that_the_table_lacks():
    found = {name for case in all_cases() for name in operators_of(case)}
    left_out = [name for names in OPERATORS.values() for name in names.split()]
    assert {name for name in found if not is_supported(name)} == set(left_out)
    assert len(left_out) == len(set(left_out))
