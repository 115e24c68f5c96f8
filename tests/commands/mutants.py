"""python tests/commands/mutants.py: changes the library in one place at a time, and checks whether its tests notice.

A mutant is a copy of the package in which one comparison, operator, constant, condition or guard is changed. Its tests
run until the first failure. A mutant is caught if a test fails, or if the package cannot be imported. The tests of a
module must first pass without a change. Survivors are printed: either a test is missing, or the change makes no
difference, which the reader decides. `--only` selects modules by part of their path, `--sample` limits the mutants
of each module.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BITS = ["tests/_arithmetic/test_rounding.py", "tests/_arithmetic/test_subnormals.py"]
REMEDIES = [
    f"tests/_operators/{name}.py"
    for name in ("test_remedies", "test_remedies_of_convolution", "test_remedies_that_keep_values")
]
TARGETS = {
    "jaxdml/_directml/tensor_rules.py": ["tests/_directml", "tests/_compiled/test_bindings.py"],
    "jaxdml/_directml/size_checks.py": ["tests/_directml", *REMEDIES, "tests/_operators/test_wrong_shapes.py"],
    "jaxdml/_directml/remedies.py": [
        "tests/_directml/test_remedies.py",
        *REMEDIES,
        "tests/_operators/test_call_errors.py",
        "tests/_operators/test_wrong_blocks.py",
        "tests/_operators/test_wrong_products_and_windows.py",
        "tests/_operators/test_export.py",
    ],
    "jaxdml/_directml/quantization.py": [
        "tests/_directml/test_quantization_tensors.py",
        "tests/_operators/test_wrong_blocks.py",
        "tests/_operators/test_export.py",
    ],
    "jaxdml/_directml/window_checks.py": [
        "tests/_directml/test_sizes_and_options.py",
        "tests/_directml/test_sizes_of_products_and_windows.py",
        "tests/_directml/test_windows.py",
        "tests/_directml/test_errors.py",
        "tests/_directml/test_remedies.py",
        "tests/_operators/test_wrong_products_and_windows.py",
        "tests/_operators/test_remedies_of_convolution.py",
        "tests/_operators/test_export.py",
    ],
    "jaxdml/_directml/validate.py": [
        "tests/_directml",
        "tests/_operators/test_wrong_types_and_levels.py",
        "tests/_operators/test_prepared.py",
        "tests/test_an_operator_made_up.py",
    ],
    "jaxdml/_directml/strides.py": ["tests/_directml/test_strides.py", "tests/_compiled"],
    "jaxdml/_arithmetic/rounding.py": [
        *BITS,
        "tests/_operators/test_average_pooling.py",
        "tests/_operators/test_dynamic_quantize.py",
        "tests/_operators/test_quantize_and_dequantize.py",
        "tests/_operators/test_integer_products.py",
        "tests/_operators/test_element_wise.py",
        "tests/_operators/test_gradients.py",
    ],
    "jaxdml/_arithmetic/zero_points.py": [
        "tests/_operators/test_integer_products.py",
        "tests/_arithmetic/test_forms.py",
        "tests/_arithmetic/test_backends.py",
        "tests/_operators/test_contractions.py",
        "tests/_operators/test_export.py",
        "tests/_arithmetic/test_sharding.py",
    ],
    "jaxdml/_arithmetic/division.py": ["tests/_arithmetic/test_division.py"],
    "jaxdml/_arithmetic/square_root.py": ["tests/_arithmetic/test_square_root.py"],
    "jaxdml/_arithmetic/int8.py": ["tests/_arithmetic/test_long_sums.py", "tests/_arithmetic/test_forms.py"],
    "jaxdml/_exact/remainders.py": ["tests/_exact/test_remainders.py"],
    "jaxdml/_exact/scatters.py": ["tests/_exact/test_scatters.py"],
    "jaxdml/_exact/sums.py": ["tests/_exact/test_sums.py", "tests/_exact/test_scatters.py"],
}

SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add,
}  # fmt: skip
# Functions of jax.lax that correspond to Python's operators.
FUNCTIONS = {
    "lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq", "add": "sub", "sub": "add", "mul": "add",
    "max": "min", "min": "max", "bitwise_and": "bitwise_or", "bitwise_or": "bitwise_and", "bitwise_xor": "bitwise_or",
}  # fmt: skip
# Functions that return their first argument, except in the cases that they guard.
GUARDS = {"flushed", "flushed_straight_through", "rounded_to", "sealed", "with_rank", "broadcast_like"}


def changes(node):
    """The fields of a node that mutants change, and their new values."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield "ops", [SWAPS[type(node.ops[0])](), *node.ops[1:]]
    elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in SWAPS:
        yield "op", SWAPS[type(node.op)]()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "op", ast.UAdd()
    elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        yield "value", not node.value if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.If | ast.IfExp):
        yield "test", ast.Constant(False)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in GUARDS:
        yield "func", ast.parse("(lambda x, *_: x)", mode="eval").body
    elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "lax" and node.attr in FUNCTIONS:
        yield "attr", FUNCTIONS[node.attr]


def mutants(source):
    """(line, code before, code after, the changed source) of every mutant."""
    tree = ast.parse(source)
    for number, node in enumerate(ast.walk(tree)):
        for field, value in changes(node):
            changed = copy.deepcopy(tree)
            target = next(other for place, other in enumerate(ast.walk(changed)) if place == number)
            before = ast.unparse(target)
            setattr(target, field, value)
            yield node.lineno, before, ast.unparse(target), ast.unparse(ast.fix_missing_locations(changed))


def outcome(folder, tests, timeout=600):
    """The outcome of the tests of a copy of the package: "passed", "failed", "not imported" or "timed out".

    Raises:
      SystemExit: if pytest could not run the tests, for instance because a file is missing.
    """
    # A test file that cannot be collected is a failure; without the option it looks like a wrong command.
    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    # The changed code computes on XLA. Python reuses bytecode for a source of the same size and modification second,
    # as the next mutant's often is, so none is written.
    environment = os.environ | {
        "PYTHONPATH": str(folder), "JAXDML_KERNELS": "xla", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    process = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "check": False}
    try:
        run = subprocess.run(command, timeout=timeout, **process)
    except subprocess.TimeoutExpired:
        return "timed out"
    match run.returncode:
        case pytest.ExitCode.OK:
            return "passed"
        case pytest.ExitCode.TESTS_FAILED:
            return "failed"
    if subprocess.run([sys.executable, "-c", "import jaxdml"], **process).returncode:
        return "not imported"
    raise SystemExit(f"pytest ended with {run.returncode} on {tests}:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")


def survivors(folder, module, tests, sample=None):
    """(number of mutants, those that no test detects); `folder` has a copy of the package and its tests.

    Raises:
      SystemExit: if the tests do not pass without a change.
    """
    source = (folder / module).read_text(encoding="utf-8")
    if (unchanged := outcome(folder, tests)) != "passed":
        raise SystemExit(f"{module}: without a change its tests {unchanged}")
    made = list(mutants(source))
    if sample:
        made = random.Random(0).sample(made, min(sample, len(made)))
    survived = []
    for mutant in made:
        (folder / module).write_text(mutant[-1], encoding="utf-8")
        if outcome(folder, tests) == "passed":
            survived.append(mutant[:-1])
    (folder / module).write_text(source, encoding="utf-8")
    return len(made), survived


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of a module's path")
    parser.add_argument("--sample", type=int, help="so many mutants of each module, drawn at random but the same ones")
    arguments = parser.parse_args()
    total = survived = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("jaxdml", "tests"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        for module, tests in TARGETS.items():
            if arguments.only not in module:
                continue
            count, unnoticed = survivors(folder, module, tests, arguments.sample)
            for line, before, after in unnoticed:
                print(f"{module}:{line}: survives as\n    {after}\n  instead of\n    {before}")
            print(f"{module}: {count} mutants, {len(unnoticed)} not caught", flush=True)
            total, survived = total + count, survived + len(unnoticed)
    print(f"{total} mutants, {total - survived} caught, {survived} not")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
