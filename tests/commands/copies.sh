# Copies of experts change no byte: quantised weights, `use ... when`, runs and executables; what --stats counts.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
m=build/moecc
same() { # same NAME FILE SED ARGUMENTS...: the file, and the file edited, give the same output
    name=$1 file=$2 edit=$3
    shift 3
    sed "$edit" "$file" >"$folder/$name.moe"
    $m run "$file" "$@" -q --output "$folder/$name.with" >/dev/null
    $m run "$folder/$name.moe" "$@" -q --output "$folder/$name.without" >/dev/null
    cmp "$folder/$name.with" "$folder/$name.without"
}
without='s/^ *\(replicate experts\|spare\).*//'
for tokens in 9 300,0,17,128; do
    same example examples/copies.moe "$without" --tokens $tokens --seed 3
done
# E4M3 and MXFP4 weights: a checkpoint, and random ones.
data=tests/data/deepseek-v3-fp8-tiny
sed "s|\.\./data|$PWD/tests/data|; s|\(place experts over rank;\)|\1 replicate experts { copies: 3 };|" \
    tests/end_to_end/deepseek-v3-fp8-tiny.moe >"$folder/fp8.moe"
grep -q 'replicate experts' "$folder/fp8.moe"
same fp8w "$folder/fp8.moe" 's/replicate experts { copies: 3 };//' --layer 1 --weights $data --input $data/input.safetensors
sed 's/^dim tokens/format fp4 = mxfp4 { block: [1, 32], scale: ue8m0 };\ndim tokens/; s/bf16\[experts/fp4[experts/' \
    examples/copies.moe >"$folder/fp4.moe"
grep -q 'fp4\[experts, hidden, ffn\]' "$folder/fp4.moe"
same fp4w "$folder/fp4.moe" "$without" --tokens 40
# An executable holds the copies' weights too.
$m build examples/copies.moe --cpu-level v2 -o "$folder/copied" 2>/dev/null
$m run examples/copies.moe --cpu-level v2 --tokens 9 --seed 3 -q --output "$folder/jit" --stats "$folder/stats.json" >/dev/null
"$folder/copied" --tokens 9 --seed 3 -q --output "$folder/exe" >/dev/null
cmp "$folder/jit" "$folder/exe"
grep -q '"expert_load"' "$folder/stats.json"
python3 - "$folder/stats.json" <<'END' 2>/dev/null || [ ! -x "$(command -v python3)" ]
import json, sys
assert sum(json.load(open(sys.argv[1]))["expert_load"]) == 4 * 9 * 2
END
