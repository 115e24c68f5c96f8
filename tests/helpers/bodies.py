"""The bodies of the operators, without the jit that wraps them in the public functions."""

from jaxdml._operators.call import OPERATORS


def body(case, *arguments):
    """The result of the case's operator, traced anew each time; `arguments` replace the case's own."""
    operator = OPERATORS[case.operator]
    tensors, statics = operator.arguments(arguments or case.arguments, case.options)
    return operator.body(*tensors, **statics)
