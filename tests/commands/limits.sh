# What a plan cannot hold, and layers at the edge of the language, are answered at their place: never as a bug of moecc.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
wrong=0
ulimit -v 16000000
. tests/expect.sh
m=$PWD/build/moecc
hello=$PWD/examples/hello.moe
for command in check simulate run; do
    expect 1 "E0206.*\`w_gate_up\` takes 17179869184 bytes, more than the 1073741824" "$m" $command "$hello" -D hidden=65536 -D ffn=65536
    expect 1 "E0206.*more than the 1048576" "$m" $command "$hello" -D hidden=8 -D ffn=1048576
done
sed 's/k: 2/k: 600/' "$hello" >"$folder/k.moe"
expect 1 "600 choices per token, more than the 512" "$m" check "$folder/k.moe" -D experts=1024
for size in "-D tokens=16777216" "-D experts=65536" "-D experts=2048 -D tokens=16777216"; do
    expect 3 "out of memory" "$m" run "$hello" $size --tokens 8
done
layer() { # layer FILE STAGES SCHEDULE
    cat >"$folder/$1" <<END
import std.ops; import std.hw { laptop };
dim tokens <= 64; dim hidden = 32; dim experts = 8;
layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] { $2 }
placement p on laptop { place experts over rank; }
schedule s for moe { $3 }
pipeline main { layer = moe; cluster = laptop; placement = p; target = cpu; use s; }
END
}
layer empty.moe "yield x;" ""
expect 1 "E0901.*without stages" "$m" check "$folder/empty.moe"
layer add.moe "stage a: y = add(x, x); yield y;" "stream c uses sm; bind a to c; a;"
expect 0 "" "$m" check "$folder/add.moe"
expect 0 "" "$m" run "$folder/add.moe" --tokens 4,3,2,1 -q
layer aside.moe "stage a: y = add(x, x); yield x;" "stream c uses sm; bind a to c; a;"
expect 0 "" "$m" run "$folder/aside.moe" --tokens 4,3,2,1 -q
layer route.moe "param w: f32[experts, hidden]; stage a: r = topk(x, w, k: 2); yield x;" "stream c uses sm; bind a to c; a;"
expect 1 "E0901" "$m" run "$folder/route.moe" --tokens 4,3,2,1 -q
# What is not built yet, or does not go together, each at its place.
# A parameter is stored for the kernels of one stage: others that would read it otherwise are refused, not misread.
dense() { # dense FILE STAGES: over experts whose two projections may be one matrix
    layer "$1" "param up: bf16[1, 2 * hidden, hidden]; param down: bf16[1, hidden, 2 * hidden]; param half: bf16[1, hidden, hidden];
        $2 stage c: y = add(p, q); yield y;" "stream c uses sm; bind a, b, c to c; a; b; c;"
}
dense twice.moe "stage a: p = mlp(x, up, down); stage b: q = mlp(x, up, down);"
expect 0 "" "$m" run "$folder/twice.moe" --tokens 4 -q
dense halves.moe "stage a: p = mlp(x, up, down); stage b: q = swiglu(x, up, half);"
expect 1 "halves.moe:4:40: error.E0901.*.up. in another role" "$m" run "$folder/halves.moe" --tokens 4 -q
sed '/yield y/s/yield y/stage shared: z = swiglu(x, w_gate_up, w_down); stage sum: s = add(y, z); yield s/' "$hello" >"$folder/routed.moe"
expect 1 "E0901.*.w_gate_up. in another role" "$m" run "$folder/routed.moe" --tokens 4 -q
many=$(printf 'x, %.0s' $(seq 28))
layer guests.moe "extern stage e: y = f(${many}cost: 1us); yield y;" "stream c uses sm; bind e to c; e;"
expect 1 "E0901.*extern stages of more than" "$m" check "$folder/guests.moe"
fp8() { # fp8 FILE SED: FP8 arithmetic of another layer
    sed "$2" examples/fp8_arithmetic.moe >"$folder/$1"
}
fp8 plain.moe 's/fp8_weights\[/bf16[/'
expect 1 "plain.moe:27:[0-9]*: error.E0901.*with other weights" "$m" check "$folder/plain.moe"
fp8 blocks.moe '/^format fp8_weights/s/128, 128/128, 64/'
expect 1 "E0901.*with other weights" "$m" check "$folder/blocks.moe"
fp8 wide.moe 's/bf16\[tokens/f32[tokens/g'
expect 1 "E0901.*f32 rows in FP8" "$m" check "$folder/wide.moe"
fp8 halves.moe 's/^cluster/weights one for moe { w_router = "r"; w_gate_up = scaled("u", suffix: "_s"); w_down = scaled("d", suffix: "_s"); }\n&/
    s/target  .*/& weights = one(safetensors("none"));/'
expect 1 "E0901.*scales change within 64 gate rows" "$m" run "$folder/halves.moe" -D ffn=120 --target cuda:sm_90a,host --tokens 4
fp8 wires.moe 's/wire: fp8_rows/wire: short_blocks/;/^format fp8_rows/p;/^format fp8_rows/s/fp8_rows    = fp8_e4m3 { block: \[1, 128/short_blocks = fp8_e4m3 { block: [1, 64/'
expect 1 "E0901.*travel in other blocks" "$m" check "$folder/wires.moe"
expect 2 "for a CUDA target" "$m" run "$hello" --emit=ptx
expect 2 "there is no CPU level" "$m" run "$hello" --tokens 4 --cpu-level v9
"$m" run "$hello" -D experts=64 --tokens 64 -q --output "$folder/y" 2>/dev/null
expect 1 "chooses expert" "$m" simulate "$hello" --load "$folder/y"
printf 'import "b.moe" as b;\n' | cat - "$hello" >"$folder/a.moe"
echo 'import "a.moe" as a;' >"$folder/b.moe"
expect 1 "E0104.*imports itself" "$m" check "$folder/a.moe"
{ cat "$hello"; echo 'expect experts == 9 else "nine";'; } >"$folder/hoped.moe"
expect 0 "warning.E0401.*expectation not met: nine" "$m" check "$folder/hoped.moe"
exit $wrong
