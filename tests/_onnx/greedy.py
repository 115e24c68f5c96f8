"""Greedy tokens of a language model from a file, one by one, in a cache with free space."""

import numpy as np

ROOM, STEPS = 72, 64


def decoded(model, sizes, prompt, steps=STEPS):
    """The prompt and greedy tokens after it, and the logits of each but the last, token by token."""
    empty = np.zeros((len(prompt), sizes.kv_heads, ROOM, sizes.head_size), np.float32)
    inputs = {f"past_key_values.{layer}.{part}": empty for layer in range(sizes.layers) for part in ("key", "value")}
    tokens, logits = prompt, []
    for place in range(prompt.shape[1] + steps - 1):
        mask = np.broadcast_to(np.arange(ROOM) <= place, (len(prompt), ROOM)).astype(np.int64)
        outputs = model.apply(model.params, input_ids=tokens[:, place : place + 1], attention_mask=mask, **inputs)
        inputs = {name.replace("present", "past_key_values"): x for name, x in outputs.items() if name != "logits"}
        logits.append(np.asarray(outputs["logits"]))
        if place + 1 == tokens.shape[1]:
            tokens = np.concatenate([tokens, logits[-1].argmax(-1)], 1)
    return tokens, np.concatenate(logits, 1)
