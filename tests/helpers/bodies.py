"""The computing bodies of the operators, without the jit that the functions put around them."""

from jaxdml._operators.call import OPERATORS


def body(case, *arguments):
    """What the case's operator computes, traced anew each time; `arguments` stand for the case's own."""
    operator = OPERATORS[case.operator]
    given = operator.checked(operator.parameters.bound(arguments or case.arguments, case.options))
    statics = {name: given[name] for name in operator.parameters.statics}
    return operator.body(*(given[name] for name in operator.parameters.tensors), **statics)
