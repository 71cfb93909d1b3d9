#!/usr/bin/env python3
"""Make the tiny checkpoints of this folder, and what the Hugging Face implementation computes from them.

For each entry of CHECKPOINTS this writes a directory with

    config.json             the model's own keys
    model.safetensors       random MoE weights under the model's own tensor names; or shards of it and their index
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
import shutil
import sys
import tempfile
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
FP8_BLOCK = 128
MIN_SIGMOID_GAP = 0.005  # the same for scores by sigmoid, whose slope is at most 1/4, and for the scores of groups


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
    ffn_key: str = "intermediate_size"
    sigmoid: bool = False  # scores by sigmoid, chosen by score + bias within the groups whose two best are the best
    scale: float = 1.0  # of the routed part
    gain: float = 0.0  # of the down projections; 0: by renormalise
    bias: str = ""  # the selection bias, float32
    shared_gate: str = ""  # the shared expert's three matrices, where there is one
    shared_up: str = ""
    shared_down: str = ""
    sigmoid_gate: str = ""  # factor on the shared expert's output

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

GATE_UP_DOWN = {part: "mlp.experts.{expert}." + part + "_proj.weight" for part in ("gate", "up", "down")}

QWEN2_MOE = Family(
    config_class=transformers.Qwen2MoeConfig,
    model_class=transformers.Qwen2MoeForCausalLM,
    experts_key="num_experts",
    ffn_key="moe_intermediate_size",
    extra_config={"norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": []},
    router="mlp.gate.weight",
    **GATE_UP_DOWN,
    renormalise=False,
    shared_gate="mlp.shared_expert.gate_proj.weight",
    shared_up="mlp.shared_expert.up_proj.weight",
    shared_down="mlp.shared_expert.down_proj.weight",
    sigmoid_gate="mlp.shared_expert_gate.weight",
)

QWEN3_MOE = Family(
    config_class=transformers.Qwen3MoeConfig,
    model_class=transformers.Qwen3MoeForCausalLM,
    experts_key="num_experts",
    ffn_key="moe_intermediate_size",
    extra_config={"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    router="mlp.gate.weight",
    **GATE_UP_DOWN,
    renormalise=True,
)

DEEPSEEK_V3 = Family(
    config_class=transformers.DeepseekV3Config,
    model_class=transformers.DeepseekV3ForCausalLM,
    experts_key="n_routed_experts",
    ffn_key="moe_intermediate_size",
    extra_config={"norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    router="mlp.gate.weight",
    **GATE_UP_DOWN,
    renormalise=True,
    sigmoid=True,
    scale=2.5,
    gain=1.0,
    bias="mlp.gate.e_score_correction_bias",
    shared_gate="mlp.shared_experts.gate_proj.weight",
    shared_up="mlp.shared_experts.up_proj.weight",
    shared_down="mlp.shared_experts.down_proj.weight",
)


@dataclass(frozen=True)
class Checkpoint:
    """One directory to make. `dtype` is that of the weights; input values are always representable in it.

    `layers` MoE layers follow `dense` layers of the model that have none and that are not stored."""

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
    dense: int = 0
    shared_ffn: int = 0
    groups: int = 1
    groups_kept: int = 1
    shards: int = 1  # files
    fp8: bool = False  # experts as E4M3 codes with a float32 scale for each FP8_BLOCK x FP8_BLOCK of them

    def numbers(self) -> range:
        return range(self.dense, self.dense + self.layers)  # of the MoE layers


CHECKPOINTS = {
    "olmoe-tiny": Checkpoint(OLMOE, 1, 128, 64, 16, 4, layers=2, tokens=96, dtype=torch.bfloat16),
    # Half the ffn of olmoe-tiny, because float32 takes twice the room.
    "olmoe-tiny-f32": Checkpoint(OLMOE, 2, 128, 32, 16, 4, layers=2, tokens=96, dtype=torch.float32),
    # Multiples of 8 and of nothing larger, so that no tile, vector or FP8 block divides them; an odd number of tokens.
    "mixtral-tiny": Checkpoint(MIXTRAL, 3, 72, 40, 8, 2, layers=2, tokens=65, dtype=torch.bfloat16),
    "mixtral-tiny-f32": Checkpoint(MIXTRAL, 4, 72, 40, 8, 2, layers=2, tokens=65, dtype=torch.float32),
    "qwen2-moe-tiny": Checkpoint(QWEN2_MOE, 6, 72, 40, 12, 4, layers=2, tokens=65, dtype=torch.bfloat16, shared_ffn=56),
    "qwen2-moe-tiny-f32": Checkpoint(QWEN2_MOE, 7, 72, 40, 12, 4, layers=2, tokens=65, dtype=torch.float32, shared_ffn=56),
    "qwen3-moe-tiny": Checkpoint(QWEN3_MOE, 8, 64, 24, 24, 8, layers=2, tokens=48, dtype=torch.bfloat16, shards=3),
    "qwen3-moe-tiny-f32": Checkpoint(QWEN3_MOE, 9, 64, 24, 24, 8, layers=2, tokens=48, dtype=torch.float32, shards=2),
    "deepseek-v3-tiny": Checkpoint(
        DEEPSEEK_V3, 10, 64, 32, 16, 4, layers=2, tokens=64, dtype=torch.bfloat16, dense=1, shared_ffn=32, groups=4, groups_kept=2
    ),
    "deepseek-v3-tiny-f32": Checkpoint(
        DEEPSEEK_V3, 11, 64, 32, 16, 4, layers=2, tokens=64, dtype=torch.float32, dense=1, shared_ffn=32, groups=4, groups_kept=2
    ),
    # Sizes that no block divides: 160 = 1.25 x 128, 136 = 1.0625 x 128. The router stays bfloat16, the bias float32.
    "deepseek-v3-fp8-tiny": Checkpoint(
        DEEPSEEK_V3, 12, 160, 136, 8, 3, layers=2, tokens=48, dtype=torch.bfloat16, dense=1, shared_ffn=136, groups=4, groups_kept=2, fp8=True
    ),
    "demo": Checkpoint(
        OLMOE, 5, 256, 192, 16, 4, layers=1, tokens=1024, dtype=torch.bfloat16, input_dtype=torch.bfloat16, input_bias=0.4
    ),
}


# ---------------------------------------------------------------------------------------------------------------------
# Weights and input


def config_json(c: Checkpoint) -> dict:
    extra = dict(c.family.extra_config)
    if c.family.sigmoid_gate:
        extra["shared_expert_intermediate_size"] = c.shared_ffn
    if c.family.sigmoid:
        extra |= {"n_shared_experts": c.shared_ffn // c.ffn, "n_group": c.groups, "topk_group": c.groups_kept}
        extra |= {"first_k_dense_replace": c.dense}
    if c.family.ffn_key != "intermediate_size":
        extra["intermediate_size"] = 2 * c.ffn  # of the layers without experts
    return {
        "architectures": [c.family.model_class.__name__],
        "model_type": c.family.config_class.model_type,
        "hidden_size": c.hidden,
        c.family.ffn_key: c.ffn,
        c.family.experts_key: c.experts,
        "num_experts_per_tok": c.top_k,
        **extra,
        "num_hidden_layers": c.dense + c.layers,
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
        return torch.from_numpy(values.astype(np.float32)).to(torch.float32 if c.fp8 and rows != c.experts else c.dtype)

    gain = c.family.gain or (1.8 if c.family.renormalise else 2.2)
    weights = {}
    for layer in c.numbers():
        weights[c.family.tensor("router", layer)] = gaussian(c.experts, c.hidden, 2.0)
        for e in range(c.experts):
            weights[c.family.tensor("gate", layer, e)] = gaussian(c.ffn, c.hidden, 1.0)
            weights[c.family.tensor("up", layer, e)] = gaussian(c.ffn, c.hidden, 1.0)
            weights[c.family.tensor("down", layer, e)] = gaussian(c.hidden, c.ffn, gain)
        if c.family.bias:
            values = 0.1 * rng.standard_normal(c.experts)
            weights[c.family.tensor("bias", layer)] = torch.from_numpy(values.astype(np.float32))
        if c.shared_ffn:
            weights[c.family.tensor("shared_gate", layer)] = gaussian(c.shared_ffn, c.hidden, 1.0)
            weights[c.family.tensor("shared_up", layer)] = gaussian(c.shared_ffn, c.hidden, 1.0)
            weights[c.family.tensor("shared_down", layer)] = gaussian(c.hidden, c.shared_ffn, 1.0)
        if c.family.sigmoid_gate:
            weights[c.family.tensor("sigmoid_gate", layer)] = gaussian(1, c.hidden, 1.0)
    return quantised(weights, rng) if c.fp8 else weights


def scale_grid(scales: torch.Tensor, shape: tuple) -> torch.Tensor:
    """The scale of each element of a matrix; blocks at the edges are partial."""
    grid = scales.repeat_interleave(FP8_BLOCK, dim=0).repeat_interleave(FP8_BLOCK, dim=1)
    return grid[: shape[0], : shape[1]]


def quantised(weights: dict, rng: np.random.Generator) -> dict:
    """Experts the way DeepSeek-V3's checkpoint holds them: codes, and `_scale_inv` = largest magnitude / 448, by which
    they are multiplied. Blocks are given sizes that differ by up to four, so that no scale can stand for another."""
    stored = {}
    for key, w in weights.items():
        if "_proj" not in key:
            stored[key] = w
            continue
        blocks = [-(-size // FP8_BLOCK) for size in w.shape]
        w = w * scale_grid(torch.from_numpy(rng.uniform(0.5, 2.0, blocks).astype(np.float32)), w.shape)
        padded = torch.zeros([n * FP8_BLOCK for n in blocks])
        padded[: w.shape[0], : w.shape[1]] = w
        tiles = padded.abs().reshape(blocks[0], FP8_BLOCK, blocks[1], FP8_BLOCK)
        scales = tiles.amax(dim=(1, 3)) / 448
        stored[key] = (w / scale_grid(scales, w.shape)).to(torch.float8_e4m3fn)
        stored[key + "_scale_inv"] = scales
    return stored


def dequantised(weights: dict) -> dict:
    """What stored weights stand for, in float32 where they are codes."""
    plain = {}
    for key, w in weights.items():
        if key.endswith("_scale_inv"):
            continue
        scales = weights.get(key + "_scale_inv")
        plain[key] = w if scales is None else w.float() * scale_grid(scales, w.shape)
    return plain


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
        runs = [moe_float64(c, weights, layer, candidates.numpy()) for layer in c.numbers()]
        runs += chain_float64(c, weights, candidates.numpy())
        clear = np.all([decided(c, run) for run in runs], axis=0)
        kept = torch.cat([kept, candidates[torch.from_numpy(clear)]])
    return kept[: c.tokens].contiguous()


def decided(c: Checkpoint, run: "Run") -> np.ndarray:
    """Per token, whether its routes are beyond the rounding of an implementation."""
    if not c.family.sigmoid:
        return smallest_gap(run.logits, c.top_k) >= MIN_LOGIT_GAP
    experts, groups = smallest_gap(run.scores, c.top_k), smallest_gap(run.group_scores, c.groups_kept)
    return np.minimum(experts, groups) >= MIN_SIGMOID_GAP


def smallest_gap(logits: np.ndarray, top_k: int) -> np.ndarray:
    """Per token, the smallest difference between neighbours among its top_k + 1 largest values."""
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
    scores: np.ndarray  # [tokens, experts], what is chosen by: softmax over all experts, or choice_by_sigmoid()
    logits: np.ndarray  # [tokens, experts]
    group_scores: np.ndarray | None = None  # [tokens, groups]


def choice_by_sigmoid(c: Checkpoint, sigmoids: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores with the bias, -inf in groups that are dropped; and the scores of the groups."""
    biased = sigmoids + bias
    grouped = biased.reshape(len(biased), c.groups, -1)
    group_scores = np.sort(grouped, axis=2)[:, :, -2:].sum(axis=2)
    kept = np.argsort(-group_scores, axis=1, kind="stable")[:, : c.groups_kept]
    choice = np.full_like(grouped, -np.inf)
    np.put_along_axis(choice, kept[:, :, None], np.take_along_axis(grouped, kept[:, :, None], axis=1), axis=1)
    return choice.reshape(biased.shape), group_scores


def moe_float64(c: Checkpoint, weights: dict, layer: int, x: np.ndarray) -> Run:
    """The layer in float64: y = sum over the chosen e of w_e * (silu(x Wg_e^T) * (x Wu_e^T)) Wd_e^T."""

    def weight(part: str, expert: int = -1) -> np.ndarray:
        return weights[c.family.tensor(part, layer, expert)].double().numpy()

    x = x.astype(np.float64)
    logits = x @ weight("router").T
    group_scores = None
    if c.family.sigmoid:
        scores = 1.0 / (1.0 + np.exp(-logits))
        choices, group_scores = choice_by_sigmoid(c, scores, weight("bias"))
    else:
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        choices = scores
    ids = np.argsort(-choices, axis=1, kind="stable")[:, : c.top_k]
    chosen = np.take_along_axis(scores, ids, axis=1)
    if c.family.renormalise:
        chosen /= chosen.sum(axis=1, keepdims=True)
    chosen *= c.family.scale

    def swiglu(rows: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
        g = rows @ gate.T
        return (g / (1.0 + np.exp(-g)) * (rows @ up.T)) @ down.T

    y = np.zeros_like(x)
    for e in range(c.experts):
        token, choice = np.nonzero(ids == e)
        y[token] += chosen[token, choice, None] * swiglu(x[token], weight("gate", e), weight("up", e), weight("down", e))
    if c.shared_ffn:
        shared = swiglu(x, weight("shared_gate"), weight("shared_up"), weight("shared_down"))
        if c.family.sigmoid_gate:
            shared /= 1.0 + np.exp(-(x @ weight("sigmoid_gate").T))
        y += shared
    return Run(y, ids, chosen, choices, logits, group_scores)


def chain_float64(c: Checkpoint, weights: dict, x: np.ndarray) -> list[Run]:
    """All layers in turn, the output of one being the input of the next."""
    runs = []
    for layer in c.numbers():
        runs.append(moe_float64(c, weights, layer, x))
        x = runs[-1].hidden_states
    return runs


def load_blocks(c: Checkpoint, directory: Path) -> list[torch.nn.Module]:
    """The MoE block of each layer, as `from_pretrained` reads it from the directory."""
    # What the checkpoint does not describe (it is absent, so the library makes it up) is kept small.
    absent = {"vocab_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2}
    if c.family.sigmoid:
        absent |= {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    config = c.family.config_class.from_pretrained(directory, **absent)
    model, info = c.family.model_class.from_pretrained(
        directory, config=config, dtype=torch.float32, experts_implementation="eager", output_loading_info=True
    )
    # Every tensor that is stored must have been used, and no part of an MoE block may have been made up.
    assert not info["unexpected_keys"] and not info["mismatched_keys"], info
    parts = (".experts.", ".mlp.gate.", ".shared_expert")
    assert not [name for name in info["missing_keys"] if any(part in name for part in parts)], info
    blocks = [model.model.layers[number].mlp.eval() for number in c.numbers()]
    assert all("MoE" in type(b).__name__ or "Moe" in type(b).__name__ for b in blocks)
    return blocks


def moe_hugging_face(c: Checkpoint, block: torch.nn.Module, x: torch.Tensor) -> Run:
    """The block in float32. Routes are those its own router hands to its own experts, in order of choice."""
    seen = {}
    hook = block.gate.register_forward_hook(lambda module, args, out: seen.update(zip(("z", "w", "ids"), out)))
    with torch.no_grad():
        y = block(x.unsqueeze(0)).squeeze(0)
        # The router returns only the chosen ones of its scores.
        if c.family.sigmoid:
            bias = block.gate.e_score_correction_bias.numpy()
            scores, _ = choice_by_sigmoid(c, torch.sigmoid(seen["z"].float()).numpy(), bias)
        else:
            scores = torch.softmax(seen["z"].float(), dim=-1).numpy()
    hook.remove()
    ids, w = seen["ids"].to(torch.int32).numpy(), seen["w"].numpy()
    order = np.argsort(-np.take_along_axis(scores, ids, axis=1), axis=1, kind="stable")  # some routers do not sort
    ids, w = np.take_along_axis(ids, order, axis=1), np.take_along_axis(w, order, axis=1)
    return Run(y.numpy(), ids, w, scores, seen["z"].numpy())


# ---------------------------------------------------------------------------------------------------------------------
# Comparing and writing


def relative_error(actual: np.ndarray, exact: np.ndarray) -> float:
    assert np.array_equal(np.isfinite(actual), np.isfinite(exact))  # -inf: experts of dropped groups
    actual, exact = actual[np.isfinite(exact)], exact[np.isfinite(exact)]
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


def save_weights(c: Checkpoint, weights: dict, directory: Path) -> None:
    """One file; or shards with an index, tensors dealt out in turn, so that the parts of a parameter lie apart."""
    if c.shards == 1:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return
    files = [f"model-{i + 1:05}-of-{c.shards:05}.safetensors" for i in range(c.shards)]
    shard_of = {key: files[number % c.shards] for number, key in enumerate(weights)}
    for file in files:
        part = {key: value for key, value in weights.items() if shard_of[key] == file}
        save_file(part, directory / file, metadata={"format": "pt"})
    total = sum(value.numel() * value.element_size() for value in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": shard_of}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def load_weights(directory: Path) -> dict:
    """What was stored, in whatever files."""
    files = sorted(directory.glob("model*.safetensors"))
    return {key: value for file in files for key, value in load_file(file).items()}


def make(name: str, c: Checkpoint) -> None:
    directory = EXAMPLES_DIR / name if name == "demo" else DATA_DIR / name
    directory.mkdir(exist_ok=True)
    (directory / "reference.safetensors").unlink(missing_ok=True)  # an old one must not survive a failure
    rng = np.random.default_rng(c.seed)

    weights = draw_weights(c, rng)
    if c.dtype == torch.float32:  # a reader that goes through bfloat16 must be noticed
        assert all((w != w.bfloat16().float()).double().mean() > 0.8 for w in weights.values())
    x = draw_input(c, dequantised(weights), rng)
    stored_x = x.to(c.input_dtype)
    assert torch.equal(stored_x.float(), x)

    (directory / "config.json").write_text(json.dumps(config_json(c), indent=2) + "\n")
    save_weights(c, weights, directory)
    save_file({"hidden_states": stored_x}, directory / "input.safetensors")

    # From here on, only what was stored counts.
    weights = dequantised(load_weights(directory))
    x = load_file(directory / "input.safetensors")["hidden_states"].float()
    if c.fp8:  # the library expands codes on a GPU only: it is given what they stand for
        with tempfile.TemporaryDirectory() as plain:
            shutil.copy(directory / "config.json", plain)
            save_file(weights, Path(plain) / "model.safetensors", metadata={"format": "pt"})
            blocks = load_blocks(c, Path(plain))
    else:
        blocks = load_blocks(c, directory)

    print(f"{name}:")
    reference = {}
    chained = x
    for number, exact_in_chain in enumerate(chain_float64(c, weights, x.numpy())):
        layer, block = c.dense + number, blocks[number]
        run = moe_hugging_face(c, block, x)
        compare(f"layer{layer}", run, moe_float64(c, weights, layer, x.numpy()))
        reference[f"layer{layer}.hidden_states"] = run.hidden_states
        reference[f"layer{layer}.topk_ids"] = run.topk_ids
        reference[f"layer{layer}.topk_weights"] = run.topk_weights
        reference[f"layer{layer}.router_scores"] = run.scores

        in_chain = moe_hugging_face(c, block, chained)
        if number > 0:
            compare("chain", in_chain, exact_in_chain, layers=number + 1)
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
