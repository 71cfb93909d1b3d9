#!/usr/bin/env python3
"""Make families/*: a tiny random checkpoint of each model family in its own layout, and its MoE block's output.

For each entry of FAMILIES this writes a directory with

    config.json          Hugging Face's keys
    model.safetensors    random MoE weights under the model's own tensor names, in its own layout
    case.safetensors     hidden_states [tokens, hidden] and output [tokens, hidden], both float32

The Hugging Face model reads the finished directory through `from_pretrained`, so that names, orientation and the order of
gate and up are the library's own reading of its format; its MoE block is run in float32. Where the library has no usable
block (NLLB, whose experts the version below does not select) the output is computed in float64 by the formulas of the
paper's own implementation, nllb() below.

Tokens whose routes rounding could decide are left out: a kept token's output changes by less than a thousandth when the
input is scaled by 1 +- 2e-5, in the reference.

    venv/bin/python make_families.py [NAME...]      # torch 2.15.0, transformers 5.24.0, safetensors 0.8.0, numpy 2.4.6

make_references.py says how to make the venv. All seeds are fixed.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

FOLDER = Path(__file__).resolve().parent / "families"
TOKENS = 24
H, F, E, S = 64, 24, 8, 40  # hidden, ffn, experts, a shared expert's ffn

MLP = "model.layers.{layer}.mlp."


def experts(base: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj", part: str = "experts.{expert}.") -> dict:
    """One matrix a tensor: name -> (shape, deviation)."""
    return {
        f"{base}{part}{gate}.weight": ((F, H), 1 / H**0.5),
        f"{base}{part}{up}.weight": ((F, H), 1 / H**0.5),
        f"{base}{part}{down}.weight": ((H, F), 2 / F**0.5),
    }


def shared(base: str, ffn: int) -> dict:
    return {
        f"{base}gate_proj.weight": ((ffn, H), 1 / H**0.5),
        f"{base}up_proj.weight": ((ffn, H), 1 / H**0.5),
        f"{base}down_proj.weight": ((H, ffn), 1 / ffn**0.5),
    }


def router(name: str, experts_count: int = E) -> dict:
    return {name: ((experts_count, H), 2 / H**0.5)}


COMMON = {"hidden_size": H, "num_hidden_layers": 2, "hidden_act": "silu", "torch_dtype": "float32"}
DEEPSEEK = COMMON | {"moe_intermediate_size": F, "intermediate_size": 2 * F, "first_k_dense_replace": 1}
SMALL_ATTENTION = {"vocab_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
LATENT = {"vocab_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 8, "kv_lora_rank": 8,
          "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}

# name: (config.json, what from_pretrained also needs, model class, layer, where the block is, tensors)
FAMILIES = {
    "qwen3-next": (
        COMMON | {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "num_experts": E,
                  "num_experts_per_tok": 4, "moe_intermediate_size": F, "shared_expert_intermediate_size": S,
                  "intermediate_size": 2 * F, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
        SMALL_ATTENTION | {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
        "Qwen3NextForCausalLM", 0, "model.layers.0.mlp",
        router(MLP + "gate.weight") | experts(MLP) | shared(MLP + "shared_expert.", S)
        | {MLP + "shared_expert_gate.weight": ((1, H), 1 / H**0.5)},
    ),
    "deepseek-v2-lite": (
        DEEPSEEK | {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "n_routed_experts": E,
                    "num_experts_per_tok": 3, "n_shared_experts": 2, "n_group": 1, "topk_group": 1, "topk_method": "greedy",
                    "scoring_func": "softmax", "norm_topk_prob": False, "routed_scaling_factor": 1.0},
        LATENT, "DeepseekV2ForCausalLM", 1, "model.layers.1.mlp",
        router(MLP + "gate.weight") | experts(MLP) | shared(MLP + "shared_experts.", 2 * F),
    ),
    "deepseek-v2": (
        DEEPSEEK | {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "n_routed_experts": E,
                    "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
                    "topk_method": "group_limited_greedy", "scoring_func": "softmax", "norm_topk_prob": False,
                    "routed_scaling_factor": 16.0},
        LATENT, "DeepseekV2ForCausalLM", 1, "model.layers.1.mlp",
        router(MLP + "gate.weight") | experts(MLP) | shared(MLP + "shared_experts.", F),
    ),
    "glm4-moe": (
        DEEPSEEK | {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "n_routed_experts": E,
                    "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
                    "routed_scaling_factor": 2.5},
        SMALL_ATTENTION, "Glm4MoeForCausalLM", 1, "model.layers.1.mlp",
        router(MLP + "gate.weight") | {MLP + "gate.e_score_correction_bias": ((E,), 0.1)} | experts(MLP)
        | shared(MLP + "shared_experts.", F),
    ),
    "dots1": (
        DEEPSEEK | {"architectures": ["Dots1ForCausalLM"], "model_type": "dots1", "n_routed_experts": E,
                    "num_experts_per_tok": 3, "n_shared_experts": 2, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
                    "routed_scaling_factor": 2.5, "scoring_func": "noaux_tc"},
        SMALL_ATTENTION, "Dots1ForCausalLM", 1, "model.layers.1.mlp",
        router(MLP + "gate.weight") | {MLP + "gate.e_score_correction_bias": ((E,), 0.1)} | experts(MLP)
        | shared(MLP + "shared_experts.", 2 * F),
    ),
    "ernie4-5": (
        COMMON | {"architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "moe_num_experts": E, "moe_k": 3,
                  "moe_intermediate_size": F, "intermediate_size": 2 * F, "moe_num_shared_experts": 2,
                  "moe_layer_start_index": 1, "moe_layer_end_index": 1, "moe_layer_interval": 1, "use_bias": False},
        SMALL_ATTENTION, "Ernie4_5_MoeForCausalLM", 1, "model.layers.1.mlp",
        router(MLP + "gate.weight") | {MLP + "moe_statics.e_score_correction_bias": ((1, E), 0.1)} | experts(MLP)
        | shared(MLP + "shared_experts.", 2 * F),
    ),
    "hunyuan": (
        COMMON | {"architectures": ["HunYuanMoEV1ForCausalLM"], "model_type": "hunyuan_v1_moe", "num_experts": E,
                  "moe_topk": [3, 3], "moe_intermediate_size": [F, F], "num_shared_expert": [1, 1], "intermediate_size": F},
        SMALL_ATTENTION, "HunYuanMoEV1ForCausalLM", 0, "model.layers.0.mlp",
        router(MLP + "gate.wg.weight") | experts(MLP) | shared(MLP + "shared_mlp.", F),
    ),
    "phimoe": (
        COMMON | {"architectures": ["PhiMoEForCausalLM"], "model_type": "phimoe", "num_local_experts": E, "num_experts_per_tok": 2,
                  "intermediate_size": F, "router_jitter_noise": 0.01, "input_jitter_noise": 0.01},
        SMALL_ATTENTION, "PhimoeForCausalLM", 0, "model.layers.0.mlp",
        router("model.layers.{layer}.block_sparse_moe.gate.weight")
        | experts("model.layers.{layer}.block_sparse_moe.", "w1", "w3", "w2"),
    ),
    "granite": (
        COMMON | {"architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", "num_local_experts": E,
                  "num_experts_per_tok": 3, "intermediate_size": F},
        SMALL_ATTENTION, "GraniteMoeForCausalLM", 0, "model.layers.0.block_sparse_moe",
        router("model.layers.{layer}.block_sparse_moe.router.layer.weight")
        | {"model.layers.{layer}.block_sparse_moe.input_linear.weight": ((E, 2 * F, H), 1 / H**0.5),
           "model.layers.{layer}.block_sparse_moe.output_linear.weight": ((E, H, F), 2 / F**0.5)},
    ),
    "jetmoe": (
        {"architectures": ["JetMoeForCausalLM"], "model_type": "jetmoe", "hidden_size": H, "intermediate_size": F,
         "num_local_experts": E, "num_experts_per_tok": 2, "num_hidden_layers": 2, "activation_function": "silu", "torch_dtype": "float32"},
        {"vocab_size": 8, "num_key_value_heads": 2, "kv_channels": 8}, "JetMoeForCausalLM", 0, "model.layers.0.mlp",
        router(MLP + "router.layer.weight")
        | {MLP + "input_linear.weight": ((E, 2 * F, H), 1 / H**0.5), MLP + "output_linear.weight": ((E, H, F), 2 / F**0.5),
           MLP + "bias": ((H,), 0.3)},
    ),
    "dbrx": (
        {"architectures": ["DbrxForCausalLM"], "model_type": "dbrx", "d_model": H, "n_layers": 2, "torch_dtype": "float32",
         "ffn_config": {"ffn_act_fn": {"name": "silu"}, "ffn_hidden_size": F, "moe_num_experts": E, "moe_top_k": 3,
                        "moe_jitter_eps": 0.0, "moe_loss_weight": 0.05, "hidden_size": H}},
        {"vocab_size": 8, "n_heads": 2, "max_seq_len": 64, "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2}}, "DbrxForCausalLM", 0, "transformer.blocks.0.ffn",
        router("transformer.blocks.{layer}.ffn.router.layer.weight")
        | {"transformer.blocks.{layer}.ffn.experts.mlp.w1": ((E * F, H), 1 / H**0.5),
           "transformer.blocks.{layer}.ffn.experts.mlp.v1": ((E * F, H), 1 / H**0.5),
           "transformer.blocks.{layer}.ffn.experts.mlp.w2": ((E * F, H), 2 / F**0.5)},
    ),
    "llama4": (
        {"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "torch_dtype": "float32",
         "text_config": {"model_type": "llama4_text", "hidden_size": H, "intermediate_size": F, "intermediate_size_mlp": 2 * F,
                         "num_local_experts": E, "num_experts_per_tok": 1, "num_hidden_layers": 2, "hidden_act": "silu",
                         "interleave_moe_layer_step": 2, "vocab_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
                         "head_dim": 8, "pad_token_id": 0},
         "vision_config": {"model_type": "llama4_vision_model", "hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 1,
                           "num_attention_heads": 2, "vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16}},
        {}, "Llama4ForConditionalGeneration", 1, "language_model.model.layers.1.feed_forward",
        router("language_model.model.layers.{layer}.feed_forward.router.weight")
        | {"language_model.model.layers.{layer}.feed_forward.experts.gate_up_proj": ((E, H, 2 * F), 1 / H**0.5),
           "language_model.model.layers.{layer}.feed_forward.experts.down_proj": ((E, F, H), 2 / F**0.5)}
        | shared("language_model.model.layers.{layer}.feed_forward.shared_expert.", F),
    ),
    "gpt-oss-bf16": ( # gate and up interleaved, input-major; hidden and ffn are equal, as in the published models
        COMMON | {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 6, "num_experts_per_tok": 3,
                  "intermediate_size": H, "swiglu_limit": 7.0, "torch_dtype": "bfloat16"},
        SMALL_ATTENTION, "GptOssForCausalLM", 0, "model.layers.0.mlp",
        router(MLP + "router.weight", 6) | {MLP + "router.bias": ((6,), 0.5)}
        | {MLP + "experts.gate_up_proj": ((6, H, 2 * H), 4 / H**0.5), MLP + "experts.gate_up_proj_bias": ((6, 2 * H), 0.5),
           MLP + "experts.down_proj": ((6, H, H), 1 / H**0.5), MLP + "experts.down_proj_bias": ((6, H), 0.5)},
    ),
    "gpt-oss-mxfp4": (
        COMMON | {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": E, "num_experts_per_tok": 3,
                  "intermediate_size": H, "swiglu_limit": 7.0, "torch_dtype": "bfloat16",
                  "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.mlp.router"]}},
        SMALL_ATTENTION, "GptOssForCausalLM", 0, "model.layers.0.mlp",
        router(MLP + "router.weight") | {MLP + "router.bias": ((E,), 0.5)}
        | {MLP + "experts.gate_up_proj": ("mxfp4", (E, 2 * H, H), 122), MLP + "experts.gate_up_proj_bias": ((E, 2 * H), 0.5),
           MLP + "experts.down_proj": ("mxfp4", (E, H, H), 121), MLP + "experts.down_proj_bias": ((E, H), 0.5)},
    ),
    "switch": (
        {"architectures": ["SwitchTransformersForConditionalGeneration"], "model_type": "switch_transformers", "d_model": H,
         "d_ff": F, "num_layers": 2, "num_decoder_layers": 2, "num_experts": E, "expert_capacity": 3, "encoder_sparse_step": 2,
         "decoder_sparse_step": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "dense_act_fn": "relu",
         "feed_forward_proj": "relu", "is_gated_act": False, "router_bias": False, "torch_dtype": "float32"},
        {"vocab_size": 8, "d_kv": 8, "num_heads": 2}, "SwitchTransformersForConditionalGeneration", 1,
        "encoder.block.1.layer.1.mlp",
        router("encoder.block.{layer}.layer.1.mlp.router.classifier.weight")
        | {"encoder.block.{layer}.layer.1.mlp.experts.expert_{expert}.wi.weight": ((F, H), 1 / H**0.5),
           "encoder.block.{layer}.layer.1.mlp.experts.expert_{expert}.wo.weight": ((H, F), 2 / F**0.5)},
    ),
    "nllb": (
        {"architectures": ["NllbMoeForConditionalGeneration"], "model_type": "nllb-moe", "d_model": H, "encoder_ffn_dim": F,
         "encoder_layers": 4, "num_experts": E, "expert_capacity": 64, "encoder_sparse_step": 4, "activation_function": "relu",
         "moe_eval_capacity_token_fraction": 0.2, "moe_token_dropout": 0.2, "second_expert_policy": "all",
         "normalize_router_prob_before_dropping": False, "batch_prioritized_routing": False, "router_bias": False, "torch_dtype": "float32"},
        {}, None, 3, "",
        router("model.encoder.layers.{layer}.ffn.router.classifier.weight")
        | {"model.encoder.layers.{layer}.ffn.experts.expert_{expert}.fc1.weight": ((F, H), 1 / H**0.5),
           "model.encoder.layers.{layer}.ffn.experts.expert_{expert}.fc1.bias": ((F,), 0.3),
           "model.encoder.layers.{layer}.ffn.experts.expert_{expert}.fc2.weight": ((H, F), 2 / F**0.5),
           "model.encoder.layers.{layer}.ffn.experts.expert_{expert}.fc2.bias": ((H,), 0.3)},
    ),
}


def expert_count(config: dict) -> int:
    keys = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
    for part in (config, config.get("ffn_config", {}), config.get("text_config", {})):
        for key in keys:
            if key in part:
                return part[key]
    raise KeyError("experts")


def draw_weights(name: str, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    config, _, _, layer, _, tensors = FAMILIES[name]
    weights = {}
    for pattern, spec in tensors.items():
        for expert in range(expert_count(config)) if "{expert}" in pattern else [0]:
            key = pattern.format(layer=layer, expert=expert)
            if spec[0] == "mxfp4":
                _, (blocks, rows, cols), exponent = spec
                codes = rng.integers(0, 256, (blocks, rows, cols // 32, 16), dtype=np.uint8)
                scales = rng.integers(exponent - 2, exponent + 2, (blocks, rows, cols // 32)).astype(np.uint8)
                weights[key + "_blocks"], weights[key + "_scales"] = torch.from_numpy(codes), torch.from_numpy(scales)
                continue
            values = torch.from_numpy((spec[1] * rng.standard_normal(spec[0])).astype(np.float32))
            wide = "e_score_correction_bias" in key or config.get("torch_dtype", "float32") == "float32"
            weights[key] = values if wide else values.bfloat16()
    return weights


def dequantised(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """MXFP4 as the library's bf16 copies hold it: input-major. Low nibble first; the values are exact in bf16."""
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    wide = {}
    for key, value in weights.items():
        if key.endswith("_blocks"):
            pairs = torch.stack([table[(value & 15).long()], table[(value >> 4).long()]], dim=-1)
            scales = torch.exp2(weights[key.replace("_blocks", "_scales")].float() - 127)
            full = (pairs.flatten(-2) * scales[..., None]).flatten(-2)
            wide[key.removesuffix("_blocks")] = full.transpose(1, 2).contiguous().bfloat16()
        elif not key.endswith("_scales"):
            wide[key] = value
    return wide


def load_block(name: str, directory: Path, weights: dict) -> torch.nn.Module:
    """The MoE block as `from_pretrained` reads it."""
    config_json, needs, model_class, _, place, _ = FAMILIES[name]
    cls = getattr(transformers, model_class)
    if "quantization_config" in config_json:  # the library has no CPU kernels for MXFP4: it is given its own bf16 layout
        directory = directory / "wide"
        directory.mkdir(exist_ok=True)
        plain = {key: value for key, value in config_json.items() if key != "quantization_config"}
        (directory / "config.json").write_text(json.dumps(plain))
        save_file(dequantised(weights), directory / "model.safetensors", metadata={"format": "pt"})
    config = cls.config_class.from_pretrained(directory, **needs)
    model, info = cls.from_pretrained(directory, config=config, dtype=torch.float32, output_loading_info=True)
    assert not info["unexpected_keys"] and not info["mismatched_keys"], info
    absent = [key for key in info["missing_keys"] if key.startswith(place) or key.startswith("model." + place)]
    assert not absent, absent
    if directory.name == "wide":
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
    modules = dict(model.named_modules())
    found = [key for key in modules if key.endswith(place)]
    assert len(found) == 1, (place, found)
    return modules[found[0]].eval()


def run_block(block: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = block(x.unsqueeze(0))
    y = y[0] if isinstance(y, tuple) else y
    return y.reshape(x.shape)


def nllb(config: dict, weights: dict, x: torch.Tensor) -> torch.Tensor:
    """Top-2 with a capacity, in float64: first choices take an expert's places in token order, then second ones; weights
    are normalised over what is left; evaluation scales by what training's dropout would have kept."""
    base = "model.encoder.layers.3.ffn."
    w = {key: value.double() for key, value in weights.items()}
    x = x.double()
    p = torch.softmax(x @ w[base + "router.classifier.weight"].T, dim=1)
    first = p.argmax(1)
    rest = p.scatter(1, first[:, None], -1.0)
    second = rest.argmax(1)
    capacity = int(np.ceil(config["moe_eval_capacity_token_fraction"] * len(x)))
    one, two = (torch.nn.functional.one_hot(i, config["num_experts"]) for i in (first, second))
    kept_one = (one.cumsum(0) - 1)[torch.arange(len(x)), first] < capacity
    kept_two = (two.cumsum(0) - 1 + one.sum(0))[torch.arange(len(x)), second] < capacity
    a = p[torch.arange(len(x)), first] * kept_one
    b = p[torch.arange(len(x)), second] * kept_two
    total = (a + b).clamp(min=torch.finfo(torch.float32).eps)
    y = torch.zeros_like(x)
    for ids, gate in ((first, a / total), (second, b / total)):
        for e in range(config["num_experts"]):
            part = base + f"experts.expert_{e}."
            hidden = torch.relu(x @ w[part + "fc1.weight"].T + w[part + "fc1.bias"])
            y += (ids == e)[:, None] * gate[:, None] * (hidden @ w[part + "fc2.weight"].T + w[part + "fc2.bias"])
    return (y * (1 - config["moe_token_dropout"])).float()


def make(name: str, seed: int) -> None:
    config, _, model_class, _, _, _ = FAMILIES[name]
    directory = FOLDER / name
    directory.mkdir(exist_ok=True)
    (directory / "case.safetensors").unlink(missing_ok=True)
    rng = np.random.default_rng(seed)
    weights = draw_weights(name, rng)
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    weights = load_file(directory / "model.safetensors")
    block = load_block(name, directory, weights) if model_class else None
    run = (lambda x: run_block(block, x)) if block else (lambda x: nllb(config, weights, x))
    limited = "expert_capacity" in config
    for _ in range(100):
        x = torch.from_numpy(rng.standard_normal((TOKENS if limited else 4 * TOKENS, H)).astype(np.float32))
        if config["torch_dtype"] == "bfloat16":  # what the layer is given is what the reference is given
            x = x.bfloat16().float()
        y = run(x)
        moved = torch.stack([(run(x * (1 + sign * 2e-5)) - y).norm(dim=1) for sign in (-1, 1)]).amax(0)
        clear = moved <= 1e-3 * y.norm(dim=1) + 1e-9
        if limited and clear.all():  # one token more or less changes who finds a place
            break
        if not limited and clear.sum() >= TOKENS:
            x = x[clear][:TOKENS].contiguous()
            break
    y = run(x)
    save_file({"hidden_states": x, "output": y.contiguous()}, directory / "case.safetensors")
    size = sum(path.stat().st_size for path in directory.iterdir())
    print(f"{name}: rms {y.pow(2).mean().sqrt():.2f}, {size // 1000} kB, rows of zero {int((y == 0).all(1).sum())}")


def main() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, numpy {np.__version__}")
    for seed, name in enumerate(FAMILIES, 100):
        if not sys.argv[1:] or name in sys.argv[1:]:
            make(name, seed)


if __name__ == "__main__":
    main()
