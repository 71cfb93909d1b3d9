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
echo "== moecc calibrate: this machine as a device and a cluster, and the schedules' times predicted from it"
"$build/moecc" calibrate --ranks 4 -q -o "$build/here.moe"
{ sed -e '/^import std.hw/d; s/on laptop/on here/; s/= laptop/= here/' $demo/demo.moe; cat "$build/here.moe"; } >"$build/demo-here.moe"
cp $demo/config.json "$build/config.json"
cat "$build/here.moe"
"$build/moecc" simulate "$build/demo-here.moe" -D tokens=256
echo "== moecc build demo.moe: one executable that needs nothing but libc"
"$build/moecc" build $demo/demo.moe -o "$build/demo"
(cd $demo && "../../$build/demo" --input input.safetensors --output "../../$build/demo-built.safetensors" -q)
cmp "$build/demo.safetensors" "$build/demo-built.safetensors" && echo "the executable's output is the same, byte for byte"
