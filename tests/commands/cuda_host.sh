# CUDA kernels on the CPU, as a user runs them: the native backend's routes and, within bf16's rounding, its rows; what they
# are compiled from can be printed; a target without the CPU is refused with what works instead.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
command -v c++ >/dev/null || { echo "skipped: no C++ compiler"; exit 0; }
export MOECC_CACHE="$PWD/build/cuda-cache"
data=tests/data/olmoe-tiny
for target in cpu cuda:sm_80,host; do
    build/moecc run tests/end_to_end/olmoe-tiny.moe --layer 0 --weights $data --input $data/input.safetensors \
        --target $target --output "$folder/$target.safetensors" -q
done
build/moecc run tests/end_to_end/olmoe-tiny.moe --layer 0 --weights $data --input $data/input.safetensors \
    --target cuda:sm_80,host --reference "$folder/cpu.safetensors" >"$folder/out"
grep -q 'cuda:sm_80,host emulated' "$folder/out"
grep -Eq 'relative L2 (0\.00e\+00|[0-9.]+e-0[4-9])' "$folder/out"
build/moecc run examples/hello.moe --target cuda:sm_80,host -D hidden=64 -D ffn=64 --tokens 70 -q >/dev/null
build/moecc run examples/hello.moe --target cuda:sm_80,host --emit=cuda >"$folder/source"
grep -q '^constexpr int ACTIVATION = activation_silu;' "$folder/source"
status=0
build/moecc run examples/mixtral.moe --target cuda:sm_90a --tokens 1 2>"$folder/err" || status=$?
[ $status = 1 ]
grep -q 'cuda:sm_80,host' "$folder/err"
# A compiler that cannot be found is the system's failure.
status=0
MOECC_CACHE="$folder/empty" MOECC_CXX=/nonexistent PATH=/nonexistent "$PWD/build/moecc" run examples/hello.moe \
    --target cuda:sm_80,host --tokens 1 2>"$folder/err" || status=$?
[ $status = 3 ]
grep -q 'C++ compiler' "$folder/err"
# An edited kernel runs: twice the routing weights, twice the rows.
build/moecc run tests/end_to_end/olmoe-tiny.moe --target cuda:sm_80,host --emit=cuda |
    sed 's/^constexpr float SCALE = 0x1p+0f;/constexpr float SCALE = 2;/' >"$folder/edited.cu"
grep -q 'SCALE = 2' "$folder/edited.cu"
build/moecc run tests/end_to_end/olmoe-tiny.moe --layer 0 --weights $data --input $data/input.safetensors \
    --target cuda:sm_80,host --use-cuda "$folder/edited.cu" --reference "$folder/cpu.safetensors" >"$folder/out"
grep -Eq 'relative L2 (1\.0|9\.9)' "$folder/out"
# Copies of experts: the same kernels, the same bytes.
sed "s|\.\./data|$PWD/tests/data|; s|\(place experts over rank;\)|\1 replicate experts { copies: 2 };|" \
    tests/end_to_end/olmoe-tiny.moe >"$folder/copies.moe"
grep -q 'replicate experts' "$folder/copies.moe"
for file in tests/end_to_end/olmoe-tiny.moe "$folder/copies.moe"; do
    build/moecc run "$file" --layer 0 --weights $data --input $data/input.safetensors --target cuda:sm_80,host -q \
        --output "$folder/$(basename "$file").safetensors" >"$folder/out"
done
cmp "$folder/olmoe-tiny.moe.safetensors" "$folder/copies.moe.safetensors"
# Rows in blocks of fewer bits: what the native kernels make of them.
for target in cpu cuda:sm_80,host; do
    build/moecc run examples/wire_formats.moe \
        -D hidden=72 -D ffn=32 --tokens 9 --target $target --output "$folder/wire-$target.safetensors" -q
done
build/moecc run examples/wire_formats.moe \
    -D hidden=72 -D ffn=32 --tokens 9 --target cuda:sm_80,host --reference "$folder/wire-cpu.safetensors" -q >"$folder/out"
grep -Eq 'relative L2 (0\.00e\+00|[0-9.]+e-0[3-9])' "$folder/out"
