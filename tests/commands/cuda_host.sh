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
# A compiler that cannot be found is the system's failure; one that is asked for by name is not replaced by another.
status=0
MOECC_CACHE="$folder/empty" MOECC_CXX=/nonexistent PATH=/nonexistent "$PWD/build/moecc" run examples/hello.moe \
    --target cuda:sm_80,host --tokens 1 2>"$folder/err" || status=$?
[ $status = 3 ]
grep -q 'MOECC_CXX names `/nonexistent`, which is no C++ compiler that runs here' "$folder/err"
# An edited kernel runs: twice the routing weights, twice the rows.
build/moecc run tests/end_to_end/olmoe-tiny.moe --target cuda:sm_80,host --emit=cuda |
    sed 's/^constexpr float SCALE = 0x1p+0f;/constexpr float SCALE = 2;/' >"$folder/edited.cu"
grep -q 'SCALE = 2' "$folder/edited.cu"
build/moecc run tests/end_to_end/olmoe-tiny.moe --layer 0 --weights $data --input $data/input.safetensors \
    --target cuda:sm_80,host --use-cuda "$folder/edited.cu" --reference "$folder/cpu.safetensors" >"$folder/out"
grep -Eq 'relative L2 (1\.0|9\.9)' "$folder/out"
# What is not taken back: a kernel twice, or constants of another plan; text that is no kernel's; any, without CUDA.
emulated() { build/moecc run tests/end_to_end/olmoe-tiny.moe --layer 0 --weights $data --tokens 5 -q "$@" >"$folder/out" 2>"$folder/err"; }
refused() { # CODE WORDS OPTIONS...
    expected=$1 words=$2 status=0
    shift 2
    emulated "$@" || status=$?
    [ $status = "$expected" ] && grep -q "$words" "$folder/err" && return
    echo "exit $status instead of $expected: $words"
    cat "$folder/err"
    exit 1
}
{ cat "$folder/edited.cu" && echo && sed -n '/^\/\/ kernel merge/,$p' "$folder/edited.cu"; } >"$folder/wrong.cu"
refused 1 'is there twice, on line' --target cuda:sm_80,host --use-cuda "$folder/wrong.cu"
sed 's/^constexpr int THREADS = 128;/constexpr int THREADS = 64;/' "$folder/edited.cu" >"$folder/wrong.cu"
refused 1 'lacks the line `constexpr int THREADS = 128;`' --target cuda:sm_80,host --use-cuda "$folder/wrong.cu"
{ echo 'int helper;' && cat "$folder/edited.cu"; } >"$folder/wrong.cu"
refused 1 'wrong.cu:1: this belongs to no kernel' --target cuda:sm_80,host --use-cuda "$folder/wrong.cu"
refused 2 'is for a CUDA target' --target cpu --use-cuda "$folder/edited.cu"
# What an edited kernel does wrong: access to what is no memory, a loop without end.
faulty() { sed "/^\/\/ kernel merge/,\$s/float sum\[VECTOR\] = {};/& $1/" "$folder/edited.cu" >"$folder/wrong.cu"; }
line=$(sed -n '/float sum\[VECTOR\] = {};/=' "$folder/edited.cu" | tail -n 1)
faulty '*(volatile int *)8 = 1;'
refused 70 "wrong.cu:$line.*Segmentation fault, address 0x8" --target cuda:sm_80,host --use-cuda "$folder/wrong.cu"
faulty 'for (volatile int i = 1; i;);'
refused 3 'note: kernel `merge_4` has not come back' --target cuda:sm_80,host --use-cuda "$folder/wrong.cu" --timeout 0.3
# An entry of the cache that is not as it was made is made again; what a process that was killed has left goes.
entry=$(ls -t build/cuda-cache/*.so | sed -n 1p) # this edited kernel's
for damage in 'head -c 1000 "$folder/old" >"$entry"' ': >"$entry"' 'rm "$entry" && mkdir "$entry"'; do
    cp "$entry" "$folder/old"
    eval "$damage"
    touch "${entry%.so}.tmp.cu"
    refused 3 'kernel `merge_4` has not come back' --target cuda:sm_80,host --use-cuda "$folder/wrong.cu" --timeout 0.3
    cmp "$entry" "$folder/old"
    [ ! -e "${entry%.so}.tmp.cu" ]
done
touch "$folder/file"
status=0
MOECC_CACHE="$folder/file" emulated --target cuda:sm_80,host || status=$?
[ $status = 3 ] && grep -q 'cannot make the folder for compiled kernels .*: Not a directory' "$folder/err"
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
