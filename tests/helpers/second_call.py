"""A model's second call, with other values of the same shapes."""

import jax


def check_second_call_compiles_nothing(model, x, caplog):
    other = jax.tree.map(lambda leaf: leaf + 0, model.params)
    model.apply(model.params, x)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        model.apply(other, x[::-1].copy())
        assert not caplog.records
        model.apply(model.params, x[:3])
        assert caplog.records  # another shape does compile, so the check above is not vacuous
