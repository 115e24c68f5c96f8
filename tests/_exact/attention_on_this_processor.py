"""Run by test_attention.py in a process of its own, with flags that choose instructions."""

import jax

from _exact import attention_battery

attention_battery.assert_all_same(jax.jit(attention_battery.everything)(*attention_battery.INPUTS))
print("ok")
