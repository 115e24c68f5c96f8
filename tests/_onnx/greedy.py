"""Greedy tokens of a language model from a file, one by one, in a cache with free space."""

import numpy as np

ROOM, STEPS = 40, 36


def decoded(model, sizes, prompt, steps=STEPS):
    """The prompt and greedy tokens after it, and the logits of each, token by token in a cache with free space."""
    empty = np.zeros((len(prompt), sizes.kv_heads, ROOM, sizes.head_size), np.float32)
    inputs = {f"past_key_values.{layer}.{part}": empty for layer in range(sizes.layers) for part in ("key", "value")}
    tokens, logits = prompt[:, :1], []
    for step in range(steps):
        mask = np.broadcast_to(np.arange(ROOM) <= step, (len(prompt), ROOM)).astype(np.int64)
        outputs = model.apply(model.params, input_ids=tokens[:, -1:], attention_mask=mask, **inputs)
        inputs = {name.replace("present", "past_key_values"): x for name, x in outputs.items() if name != "logits"}
        logits.append(np.asarray(outputs["logits"]))
        greedy = logits[-1][:, -1:].argmax(-1)
        tokens = np.concatenate([tokens, prompt[:, step + 1 : step + 2] if step < 4 else greedy], 1)
    return tokens, np.concatenate(logits, 1)
