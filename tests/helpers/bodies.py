"""The computing bodies of the operators, without the jit that the functions put around them."""

from jaxdml._operators.call import OPERATORS


def body(case, *arguments):
    """What the case's operator computes, traced anew each time; `arguments` stand for the case's own."""
    operator = OPERATORS[case.operator]
    tensors, statics = operator.arguments(arguments or case.arguments, case.options)
    return operator.body(*tensors, **statics)
