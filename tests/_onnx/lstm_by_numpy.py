"""DynamicQuantizeLSTM with the default activations in NumPy, one direction and one step at a time."""

import numpy as np

from jaxdml import reference
from jaxdml.reference.floats import flushed, mul

F = np.float32
# Coefficients of onnxruntime's quotients of polynomials, the highest first.
LOGISTIC = (
    (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01),
    (6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06, 1.70198817374094e-03, 1.16817656904453e-01,
     9.93151921023180e-01),
)  # fmt: skip
TANH = (
    (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05,
     6.37261928875436e-04, 4.89352455891786e-03),
    (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
)  # fmt: skip


def multiply_add(x, y, z):
    """fl(x * y + z) of float32 arrays: the sum is rounded to an odd float64, so that the second rounding is right."""
    product, z = x.astype(np.float64) * y, np.asarray(z, np.float64)
    total = product + z
    is_big = np.abs(product) >= np.abs(z)
    rest = np.where(is_big, z, product) - (total - np.where(is_big, product, z))
    is_even = total.view(np.int64) & 1 == 0
    return np.where((rest != 0) & is_even, np.nextafter(total, np.copysign(np.inf, rest)), total).astype(F)


def _quotient(x, limit, polynomials):
    """x * p(x**2) / q(x**2), with x clamped to the limit."""
    x = np.clip(x, F(-limit), F(limit))
    square, (p, q) = mul(x, x), (np.zeros_like(x) for _ in polynomials)
    for coefficient in polynomials[0]:
        p = multiply_add(p, square, F(coefficient))
    for coefficient in polynomials[1]:
        q = multiply_add(q, square, F(coefficient))
    return flushed(mul(p, x) / q)


def logistic(x):
    return np.maximum(_quotient(x, 18, LOGISTIC) + F(0.5), F(0))


def tanh(x):
    return _quotient(x, 9, TANH)


def _product(x, matrix, scale, zero_point):
    """Rows of floats, quantized together by their range, times a matrix of integers."""
    integers, x_scale, x_zero_point = reference.dynamic_quantize_linear(x)
    return reference.matrix_multiply_integer_to_float(integers, x_scale, x_zero_point, matrix, scale, zero_point)


def dynamic_quantize_lstm(
    x, w, r, bias, lengths, h, c, peephole, w_scale, w_zero_point, r_scale, r_zero_point, *, backward, clip=None,
    couples_forget=False,
):  # fmt: skip
    """All hidden states [T, D, B, N], and the last hidden states and cell states [D, B, N]."""
    steps, batch, size = x.shape
    lengths = np.full(batch, steps) if lengths is None else lengths
    rows = np.where((np.arange(steps) < lengths.max())[:, None, None], x, F(0)).reshape(-1, size)
    results = []
    for d, is_backward in enumerate(backward):
        gates = _product(rows, w[d], w_scale[d], w_zero_point[d]).reshape(steps, batch, -1)
        units = r.shape[1]
        own = {
            "bias": None if bias is None else flushed(bias[d, : 4 * units] + bias[d, 4 * units :]),
            "peephole": None if peephole is None else peephole[d].reshape(3, units),
            "h": np.zeros((batch, units), F) if h is None else h[d],
            "c": np.zeros((batch, units), F) if c is None else c[d],
        }
        of_r = r[d], r_scale[d], r_zero_point[d]
        results.append(_direction(gates, of_r, lengths, is_backward, clip, couples_forget, **own))
    y, last_h, last_c = (np.stack(each) for each in zip(*results, strict=True))
    return np.moveaxis(y, 0, 1), last_h, np.where(lengths[:, None] > 0, last_c, F(0))


def _direction(gates, of_r, lengths, is_backward, clip, couples_forget, *, bias, peephole, h, c):
    """The steps of a direction, from the products [T, B, 4 * N] of x."""
    (steps, batch, _), units, limit = gates.shape, h.shape[1], F(np.inf if clip is None else clip)
    y, last_h = np.zeros((steps, batch, units), F), np.zeros_like(h)
    for step in range(steps):
        goes_on = step < lengths
        at = np.where(goes_on & is_backward, lengths - 1 - step, step)
        total = flushed(gates[at, np.arange(batch)] + _product(h, *of_r))

        def ready(gate, state=None, total=total):
            """The input of an activation: of the input, output or forget gate, or of the cell."""
            value = total[:, gate * units : (gate + 1) * units]
            if state is not None and peephole is not None:
                value = flushed(value + mul(state, np.broadcast_to(peephole[gate], state.shape)))
            if bias is not None:
                value = flushed(value + bias[gate * units : (gate + 1) * units])
            return np.clip(value, -limit, limit)

        i = logistic(ready(0, c))
        f = flushed(F(1) - i) if couples_forget else logistic(ready(2, c))
        new_c = flushed(mul(c, f) + mul(i, tanh(ready(3))))
        new_h = mul(tanh(new_c), logistic(ready(1, new_c)))
        goes_on = goes_on[:, None]
        c, last_h, h = np.where(goes_on, new_c, c), np.where(goes_on, new_h, last_h), np.where(goes_on, new_h, F(0))
        y[at, np.arange(batch)] = h
    return y, last_h, c
