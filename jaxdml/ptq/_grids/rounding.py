"""Rounds weights so that sums of products with them change little, as in GPTQ (Frantar et al., 2023).

With E the errors of the weights of a sum, and H the second moments of the rows that these weights multiply, the mean
square of the error of the sum is E' H E. With H = R R', where R is upper triangular, this is the sum over j of

    R[j, j]**2 * (E[j] + sum over i < j of E[i] * R[i, j] / R[j, j])**2.

So the errors of earlier weights, times R[i, j] / R[j, j], are added to a weight before it is rounded. This makes each
square in turn as small as rounding allows. GPTQ's formula, which has the inverse of H, gives the same integers. Weights
that multiply large elements are rounded first: the others compensate for their errors.
"""

import numpy as np

DAMPING = 0.01  # added to the diagonal of H, relative to the mean of the diagonal
BLOCK = 128  # the number of weights of a sum that are rounded between two large matrix products


def rounded(w: np.ndarray, scale: np.ndarray, products: np.ndarray, most: int) -> np.ndarray:
    """The integers of weights.

    Args:
      w: float array [groups, depth, outputs].
      scale: the positive scale of each weight, of w's shape.
      products: the second moments of the rows that the weights multiply, [groups, depth, depth].
      most: the greatest integer; the least is its negative.

    Returns:
      int8 array of w's shape.
    """
    integers = np.empty(w.shape, np.int8)
    for group in range(len(w)):
        order = np.argsort(-products[group].diagonal(), kind="stable")
        of_rows = products[group][np.ix_(order, order)]
        integers[group, order] = _in_turn(w[group, order], scale[group, order], of_rows, most)
    return integers


def _in_turn(w: np.ndarray, scale: np.ndarray, products: np.ndarray, most: int) -> np.ndarray:
    w, scale, products = (x.astype(np.float64) for x in (w, scale, products))
    damping = DAMPING * products.trace() / max(len(products), 1)
    products[np.diag_indices_from(products)] += damping if damping > 0 else 1
    upper = np.linalg.cholesky(products[::-1, ::-1])[::-1, ::-1]
    shares = np.ascontiguousarray((upper / upper.diagonal()).T)  # shares[j, i] times error i is added to weight j
    integers, errors = np.empty(w.shape, np.int8), np.zeros(w.shape)
    for first in range(0, len(w), BLOCK):
        targets = w[first : first + BLOCK] + shares[first : first + BLOCK, :first] @ errors[:first]
        for place, target in enumerate(targets, first):
            target = target + shares[place, first:place] @ errors[first:place]
            steps = np.clip(np.rint(target / scale[place]), -most, most)
            integers[place], errors[place] = steps, w[place] - steps * scale[place]
    return integers
