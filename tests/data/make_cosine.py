#!/usr/bin/env python3
"""Make cosine/*: a checkpoint for layer.moe, whose router takes cosine similarities and adds seeded noise to the choice.

No published model of a library has such a router, so the output is computed here, in float64, from its definition:
p = softmax(temperature * cos(x, w_e)); the k largest of p + noise are chosen; their p, normalised, weight SwiGLU experts.
The noise of an expert is a sum of eight uniform 16-bit numbers, centred and scaled, from a hash of seed, layer, rank, the
token's number on its rank, and expert: `output` is one rank's, `output_4` that of four ranks with equal shares.

    python make_cosine.py      # numpy and safetensors
"""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

FOLDER = Path(__file__).resolve().parent / "cosine"
TOKENS, H, F, E, K = 48, 64, 24, 8, 2
TEMPERATURE, DEVIATION, SEED = 6.0, 0.05, 11
STEP, MASK = 0x9E3779B9, 0xFFFFFFFF


def mixed(x: int) -> int:
    x = (x ^ x >> 16) * 0x7FEB352D & MASK
    x = (x ^ x >> 15) * 0x846CA68B & MASK
    return x ^ x >> 16


def noise(rank: int, token: int, expert: int) -> float:
    x = mixed(mixed(mixed(mixed((SEED * STEP + 1) & MASK) ^ 0) ^ rank) ^ token)  # layer 0
    x = mixed(x ^ (expert * STEP & MASK))
    words = [mixed(x + i * STEP & MASK) for i in range(4)]
    total = sum((word & 0xFFFF) + (word >> 16) for word in words)
    return (total - 4 * 65535) * DEVIATION / (65536 * np.sqrt(8 / 12))


def layer(w: dict, x: np.ndarray, ranks: int) -> tuple[np.ndarray, float, int]:
    """Its output, how close two choices come, and for how many tokens noise changes the choice."""
    w = {key: value.astype(np.float64) for key, value in w.items()}
    x = x.astype(np.float64)
    router = w["router"]
    similarity = x @ router.T / np.linalg.norm(x, axis=1)[:, None] / np.linalg.norm(router, axis=1)
    p = np.exp(TEMPERATURE * similarity)
    p /= p.sum(1, keepdims=True)
    y, gap, moved = np.zeros_like(x), np.inf, 0
    for row in range(len(x)):
        rank, token = divmod(row, len(x) // ranks)
        noisy = p[row] + [noise(rank, token, e) for e in range(E)]
        order = np.argsort(-noisy)
        gap = min(gap, noisy[order[K - 1]] - noisy[order[K]])
        moved += set(order[:K]) != set(np.argsort(-p[row])[:K])
        for e in order[:K]:
            gate, up = w["gate_up"][e, :F] @ x[row], w["gate_up"][e, F:] @ x[row]
            y[row] += p[row, e] / p[row, order[:K]].sum() * (w["down"][e] @ (gate / (1 + np.exp(-gate)) * up))
    return y, gap, moved


def main() -> None:
    rng = np.random.default_rng(12)
    FOLDER.mkdir(exist_ok=True)
    draw = lambda shape, deviation: (rng.standard_normal(shape) * deviation).astype(np.float32)
    w = {"router": draw((E, H), 1), "gate_up": draw((E, 2 * F, H), H**-0.5), "down": draw((E, H, F), 2 * F**-0.5)}
    gap = 0
    while gap < 1e-4:  # no choice that rounding could decide
        x = draw((TOKENS, H), 1)
        (one, gap_one, moved), (four, gap_four, _) = layer(w, x, 1), layer(w, x, 4)
        gap = min(gap_one, gap_four)
    save_file(w, FOLDER / "model.safetensors")
    save_file({"hidden_states": x, "output": one.astype(np.float32), "output_4": four.astype(np.float32)}, FOLDER / "case.safetensors")
    print(f"noise changes the experts of {moved} of {TOKENS} tokens; gaps of at least {gap:.1e}")


if __name__ == "__main__":
    main()
