#!/usr/bin/env python3
"""Make the tiny checkpoints of this folder, and what the Hugging Face implementation computes from them.

For each entry of CHECKPOINTS this writes a directory with

    config.json             the model's own keys
    model.safetensors       random MoE weights under the model's own tensor names
    input.safetensors       hidden_states
    reference.safetensors   output, routes and scores of the Hugging Face MoE block, run in float32 on the weights as stored

README.md lists the tensors. Nothing else of a model (attention, norms, embeddings) is stored.

The blocks are not assembled here: `from_pretrained` reads the finished directory, so that the names, the layout and the
order of gate and up are the library's own reading of its format. Every output is then compared with a float64
computation in numpy that shares no code with it; the script fails, and leaves a directory unfinished, if they disagree.

How to run (Python 3.11 or later, no GPU, a few seconds once torch is loaded):

    python3 -m venv venv
    venv/bin/pip install torch==2.15.0 transformers==5.24.0 safetensors==0.8.0 numpy==2.4.6
    venv/bin/python make_references.py              # or: make_references.py olmoe-tiny demo

All seeds are fixed: the same versions give the same bytes. Other versions of numpy may draw other weights, other versions
of torch may round differently in the last place. Tests read the files and need none of these packages.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

DATA_DIR = Path(__file__).resolve().parent
EXAMPLES_DIR = DATA_DIR.parent.parent / "examples"

MAX_RELATIVE_ERROR = 1e-6  # of the Hugging Face block in float32 against float64, in relative L2 norm, per layer
MIN_LOGIT_GAP = 0.02  # between neighbours among the first k+1 router logits of a token; see draw_input()


# ---------------------------------------------------------------------------------------------------------------------
# What is made


@dataclass(frozen=True)
class Family:
    """How one model family names its parts, in config.json and in the checkpoint."""

    config_class: type
    model_class: type
    experts_key: str  # the key of config.json that holds the number of experts
    extra_config: dict
    router: str
    gate: str
    up: str
    down: str
    renormalise: bool  # divide the chosen probabilities by their sum

    def tensor(self, part: str, layer: int, expert: int = -1) -> str:
        return f"model.layers.{layer}." + getattr(self, part).format(expert=expert)


OLMOE = Family(
    config_class=transformers.OlmoeConfig,
    model_class=transformers.OlmoeForCausalLM,
    experts_key="num_experts",
    extra_config={"norm_topk_prob": False},
    router="mlp.gate.weight",
    gate="mlp.experts.{expert}.gate_proj.weight",
    up="mlp.experts.{expert}.up_proj.weight",
    down="mlp.experts.{expert}.down_proj.weight",
    renormalise=False,
)

MIXTRAL = Family(
    config_class=transformers.MixtralConfig,
    model_class=transformers.MixtralForCausalLM,
    experts_key="num_local_experts",
    extra_config={},  # Mixtral always renormalises and has no key for it
    router="block_sparse_moe.gate.weight",
    gate="block_sparse_moe.experts.{expert}.w1.weight",
    up="block_sparse_moe.experts.{expert}.w3.weight",
    down="block_sparse_moe.experts.{expert}.w2.weight",
    renormalise=True,
)


@dataclass(frozen=True)
class Checkpoint:
    """One directory to make. `dtype` is that of the weights; input values are always representable in it."""

    family: Family
    seed: int
    hidden: int
    ffn: int
    experts: int
    top_k: int
    layers: int
    tokens: int
    dtype: torch.dtype
    input_dtype: torch.dtype = torch.float32  # as stored
    input_bias: float = 0.0  # size of an offset shared by all tokens: it makes some experts popular


CHECKPOINTS = {
    "olmoe-tiny": Checkpoint(OLMOE, 1, 128, 64, 16, 4, layers=2, tokens=96, dtype=torch.bfloat16),
    # Half the ffn of olmoe-tiny, because float32 takes twice the room.
    "olmoe-tiny-f32": Checkpoint(OLMOE, 2, 128, 32, 16, 4, layers=2, tokens=96, dtype=torch.float32),
    # Multiples of 8 and of nothing larger, so that no tile, vector or FP8 block divides them; an odd number of tokens.
    "mixtral-tiny": Checkpoint(MIXTRAL, 3, 72, 40, 8, 2, layers=2, tokens=65, dtype=torch.bfloat16),
    "mixtral-tiny-f32": Checkpoint(MIXTRAL, 4, 72, 40, 8, 2, layers=2, tokens=65, dtype=torch.float32),
    "demo": Checkpoint(
        OLMOE, 5, 256, 192, 16, 4, layers=1, tokens=1024, dtype=torch.bfloat16, input_dtype=torch.bfloat16, input_bias=0.4
    ),
}


# ---------------------------------------------------------------------------------------------------------------------
# Weights and input


def config_json(c: Checkpoint) -> dict:
    return {
        "architectures": [c.family.model_class.__name__],
        "model_type": c.family.config_class.model_type,
        "hidden_size": c.hidden,
        "intermediate_size": c.ffn,
        c.family.experts_key: c.experts,
        "num_experts_per_tok": c.top_k,
        **c.family.extra_config,
        "num_hidden_layers": c.layers,
        "hidden_act": "silu",
    }


def draw_weights(c: Checkpoint, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Gaussian weights, rounded to the dtype they are stored in.

    The router's logits have a standard deviation of about 2, which spreads the probabilities clearly. `gain` of the down
    projection makes up for silu and for the averaging over experts, so that the output of a layer is of order 1 like its
    input, and the second layer of a chain routes as sharply as the first.
    """

    def gaussian(rows: int, columns: int, gain: float) -> torch.Tensor:
        values = gain / np.sqrt(columns) * rng.standard_normal((rows, columns))
        return torch.from_numpy(values.astype(np.float32)).to(c.dtype)

    gain = 1.8 if c.family.renormalise else 2.2
    weights = {}
    for layer in range(c.layers):
        weights[c.family.tensor("router", layer)] = gaussian(c.experts, c.hidden, 2.0)
        for e in range(c.experts):
            weights[c.family.tensor("gate", layer, e)] = gaussian(c.ffn, c.hidden, 1.0)
            weights[c.family.tensor("up", layer, e)] = gaussian(c.ffn, c.hidden, 1.0)
            weights[c.family.tensor("down", layer, e)] = gaussian(c.hidden, c.ffn, gain)
    return weights


def draw_input(c: Checkpoint, weights: dict, rng: np.random.Generator) -> torch.Tensor:
    """Gaussian tokens whose routes no correct implementation can get wrong.

    Two experts whose logits differ by less than the rounding of an implementation may be chosen either way round. A
    reference must not hold such a token: candidates are drawn until enough of them keep MIN_LOGIT_GAP in every layer, and
    in every layer of the chain, where an implementation may also have rounded the input to bfloat16.
    """
    offset = c.input_bias * rng.standard_normal(c.hidden)
    kept = torch.empty(0, c.hidden)
    while len(kept) < c.tokens:
        values = offset + rng.standard_normal((c.tokens, c.hidden))
        # Through the stored dtype and back: what is kept is what is stored, exactly.
        candidates = torch.from_numpy(values.astype(np.float32)).to(c.dtype).float()
        runs = [moe_float64(c, weights, layer, candidates.numpy()) for layer in range(c.layers)]
        runs += chain_float64(c, weights, candidates.numpy())
        gap = np.min([smallest_gap(run.logits, c.top_k) for run in runs], axis=0)
        kept = torch.cat([kept, candidates[torch.from_numpy(gap >= MIN_LOGIT_GAP)]])
    return kept[: c.tokens].contiguous()


def smallest_gap(logits: np.ndarray, top_k: int) -> np.ndarray:
    """Per token, the smallest difference between neighbours among its top_k + 1 largest logits."""
    largest = -np.sort(-logits, axis=1)[:, : top_k + 1]
    return np.min(largest[:, :-1] - largest[:, 1:], axis=1)


# ---------------------------------------------------------------------------------------------------------------------
# The two computations


@dataclass
class Run:
    """One MoE layer applied to some tokens, by either implementation."""

    hidden_states: np.ndarray  # [tokens, hidden]
    topk_ids: np.ndarray  # [tokens, top_k], best first
    topk_weights: np.ndarray  # [tokens, top_k]
    scores: np.ndarray  # [tokens, experts], softmax over all experts
    logits: np.ndarray  # [tokens, experts]


def moe_float64(c: Checkpoint, weights: dict, layer: int, x: np.ndarray) -> Run:
    """The layer in float64: y = sum over the chosen e of w_e * (silu(x Wg_e^T) * (x Wu_e^T)) Wd_e^T."""

    def weight(part: str, expert: int = -1) -> np.ndarray:
        return weights[c.family.tensor(part, layer, expert)].double().numpy()

    x = x.astype(np.float64)
    logits = x @ weight("router").T
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    ids = np.argsort(-scores, axis=1, kind="stable")[:, : c.top_k]
    chosen = np.take_along_axis(scores, ids, axis=1)
    if c.family.renormalise:
        chosen /= chosen.sum(axis=1, keepdims=True)

    y = np.zeros_like(x)
    for e in range(c.experts):
        token, choice = np.nonzero(ids == e)
        g = x[token] @ weight("gate", e).T
        u = x[token] @ weight("up", e).T
        y[token] += chosen[token, choice, None] * ((g / (1.0 + np.exp(-g)) * u) @ weight("down", e).T)
    return Run(y, ids, chosen, scores, logits)


def chain_float64(c: Checkpoint, weights: dict, x: np.ndarray) -> list[Run]:
    """All layers in turn, the output of one being the input of the next."""
    runs = []
    for layer in range(c.layers):
        runs.append(moe_float64(c, weights, layer, x))
        x = runs[-1].hidden_states
    return runs


def load_blocks(c: Checkpoint, directory: Path) -> list[torch.nn.Module]:
    """The MoE block of each layer, as `from_pretrained` reads it from the directory."""
    # What the checkpoint does not describe (it is absent, so the library makes it up) is kept small.
    absent = {"vocab_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = c.family.config_class.from_pretrained(directory, **absent)
    model, info = c.family.model_class.from_pretrained(
        directory, config=config, dtype=torch.float32, experts_implementation="eager", output_loading_info=True
    )
    # Every tensor that is stored must have been used, and no part of an MoE block may have been made up.
    assert not info["unexpected_keys"] and not info["mismatched_keys"], info
    assert not [name for name in info["missing_keys"] if ".experts." in name or ".mlp.gate." in name], info
    blocks = [layer.mlp.eval() for layer in model.model.layers]
    assert {type(b).__name__ for b in blocks} <= {"OlmoeSparseMoeBlock", "MixtralSparseMoeBlock"}
    return blocks


def moe_hugging_face(block: torch.nn.Module, x: torch.Tensor) -> Run:
    """The block in float32. Routes are those its own router hands to its own experts."""
    seen = {}
    hook = block.gate.register_forward_hook(lambda module, args, out: seen.update(zip(("z", "w", "ids"), out)))
    with torch.no_grad():
        y = block(x.unsqueeze(0)).squeeze(0)
        scores = torch.softmax(seen["z"].float(), dim=-1)  # the router returns only the chosen ones
    hook.remove()
    ids = seen["ids"].to(torch.int32)
    return Run(y.numpy(), ids.numpy(), seen["w"].numpy(), scores.numpy(), seen["z"].numpy())


# ---------------------------------------------------------------------------------------------------------------------
# Comparing and writing


def relative_error(actual: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(actual - exact) / np.linalg.norm(exact))


def compare(name: str, actual: Run, exact: Run, layers: int = 1) -> None:
    """Print how far `actual` is from `exact` after that many layers, and fail if it is too far."""
    difference = float(np.max(np.abs(actual.hidden_states - exact.hidden_states)))
    output, weights, scores = (
        relative_error(getattr(actual, field), getattr(exact, field))
        for field in ("hidden_states", "topk_weights", "scores")
    )
    rms = float(np.sqrt(np.mean(exact.hidden_states**2)))
    print(
        f"  {name:7} output: relative L2 {output:.1e}, largest difference {difference:.1e}, rms {rms:.2f};"
        f" relative L2 of weights {weights:.1e}, of scores {scores:.1e}"
    )
    assert np.array_equal(actual.topk_ids, exact.topk_ids), name
    assert max(output, weights, scores) < layers * MAX_RELATIVE_ERROR, name


def make(name: str, c: Checkpoint) -> None:
    directory = EXAMPLES_DIR / name if name == "demo" else DATA_DIR / name
    directory.mkdir(exist_ok=True)
    (directory / "reference.safetensors").unlink(missing_ok=True)  # an old one must not survive a failure
    rng = np.random.default_rng(c.seed)

    weights = draw_weights(c, rng)
    if c.dtype == torch.float32:  # a reader that goes through bfloat16 must be noticed
        assert all((w != w.bfloat16().float()).double().mean() > 0.9 for w in weights.values())
    x = draw_input(c, weights, rng)
    stored_x = x.to(c.input_dtype)
    assert torch.equal(stored_x.float(), x)

    (directory / "config.json").write_text(json.dumps(config_json(c), indent=2) + "\n")
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    save_file({"hidden_states": stored_x}, directory / "input.safetensors")

    # From here on, only what was stored counts.
    weights = load_file(directory / "model.safetensors")
    x = load_file(directory / "input.safetensors")["hidden_states"].float()
    blocks = load_blocks(c, directory)

    print(f"{name}:")
    reference = {}
    chained = x
    for layer, exact_in_chain in enumerate(chain_float64(c, weights, x.numpy())):
        run = moe_hugging_face(blocks[layer], x)
        compare(f"layer{layer}", run, moe_float64(c, weights, layer, x.numpy()))
        reference[f"layer{layer}.hidden_states"] = run.hidden_states
        reference[f"layer{layer}.topk_ids"] = run.topk_ids
        reference[f"layer{layer}.topk_weights"] = run.topk_weights
        reference[f"layer{layer}.router_scores"] = run.scores

        in_chain = moe_hugging_face(blocks[layer], chained)
        if layer > 0:
            compare("chain", in_chain, exact_in_chain, layers=layer + 1)
        chained = torch.from_numpy(in_chain.hidden_states)
        print(f"          tokens per expert {np.bincount(run.topk_ids.ravel(), minlength=c.experts).tolist()}")
    if c.layers > 1:
        reference["chain.hidden_states"] = chained.numpy()

    tensors = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in reference.items()}
    save_file(tensors, directory / "reference.safetensors")


def main() -> None:
    unknown = set(sys.argv[1:]) - CHECKPOINTS.keys()
    if unknown:
        sys.exit(f"unknown checkpoint {', '.join(sorted(unknown))}; there are {', '.join(CHECKPOINTS)}")
    # One thread: a fixed order of summation, hence the same bytes on every run.
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, numpy {np.__version__}")
    for name in sys.argv[1:] or CHECKPOINTS:
        make(name, CHECKPOINTS[name])


if __name__ == "__main__":
    main()
