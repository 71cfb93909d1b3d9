#!/bin/sh
# The demo: check, run and time a small OLMoE-layout layer on four ranks, then build it into one executable and run that.
# Usage: run.sh BUILD_DIR, from the repository's root; `make demo` calls it.
set -eu
build=$1
demo=examples/demo
echo "== moecc check demo.moe"
"$build/moecc" check $demo/demo.moe
echo "== moecc run demo.moe: 1024 tokens over four ranks, against the Hugging Face implementation's output"
"$build/moecc" run $demo/demo.moe --input $demo/input.safetensors --reference $demo/reference.safetensors \
    --output "$build/demo.safetensors" --gantt --iters 50 --warmup 5
echo "== moecc build demo.moe: one executable that needs nothing but libc"
"$build/moecc" build $demo/demo.moe -o "$build/demo"
(cd $demo && "../../$build/demo" --input input.safetensors --output "../../$build/demo-built.safetensors" -q)
cmp "$build/demo.safetensors" "$build/demo-built.safetensors" && echo "the executable's output is the same, byte for byte"
