# CUDA kernels as code for GPUs, which NVRTC makes without one: what they take on each chip is as recorded, nothing spills;
# an edited kernel is taken back, its errors have the lines of the edited file; what is compiled is compiled once.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export MOECC_CACHE="$PWD/build/cuda-cache"
moecc=build/moecc
if ! $moecc run examples/hello.moe --target cuda:sm_80,host --emit=cubin >"$folder/out" 2>"$folder/err"; then
    grep -q 'NVRTC is not installed' "$folder/err" && { echo "skipped: NVRTC is not installed"; exit 0; }
    cat "$folder/err"
    exit 1
fi

# The table of resources. Other versions of the assembler have other figures, but none may spill.
sh tests/cuda/resources.sh ${MOE_CUDA_EXAMPLES:-hello} >"$folder/resources"
awk 'NR > 2 && ($5 > 0 || $6 > 0) { print "spills: " $0; wrong = 1 } END { exit wrong }' "$folder/resources"
[ "$(grep -c '^hello' "$folder/resources")" = 30 ]
if [ "$(head -n 1 "$folder/resources")" = "$(head -n 1 tests/cuda/resources.txt)" ]; then
    tail -n +3 "$folder/resources" | while read -r line; do
        echo "$line" | tr -s ' ' >"$folder/line"
        tr -s ' ' <tests/cuda/resources.txt | grep -qxFf "$folder/line" || { echo "not as recorded: $line"; exit 1; }
    done
fi

# PTX: the products by mma.sync, rows by 16 bytes.
$moecc run examples/hello.moe --target cuda:sm_80,host --emit=ptx >"$folder/ptx"
grep -q 'mma.sync.aligned.m16n8k16' "$folder/ptx"
grep -q 'cp.async.cg.shared.global' "$folder/ptx"
for kernel in copy_rows merge; do
    sed -n "/^\/\/ kernel $kernel/,/^\/\/ kernel [^$kernel]/p" "$folder/ptx" >"$folder/rows"
    grep -Eq '(ld|st)(\.global)?(\.nc)?\.v4' "$folder/rows"
    grep -E '^\s*(ld|st)\.(global\.)?(nc\.)?(b|u|s|f)(8|16|32)\s' "$folder/rows" && { echo "$kernel: narrow accesses"; exit 1; }
done

for kernel in mlp_up mlp_down; do # results by 16 bytes, sums by 8
    sed -n "/^\/\/ kernel $kernel/,/^\/\/ kernel [^$kernel]/p" "$folder/ptx" >"$folder/product"
    grep -q 'st.v4\|st.global.v4' "$folder/product"
    grep -E '^\s*st\.(global\.)?(b|u|s|f)(8|16|32)\s' "$folder/product" && { echo "$kernel: narrow stores"; exit 1; }
done

# sm_90a: boxes of tensors and products by warpgroups, which the assembler has not put one after the other (its notes C75xx);
# in the machine code too, where a disassembler is installed (CUDA's, or `pip install nvidia-cuda-nvcc`).
$moecc run examples/hello.moe --target cuda:sm_90a,host --emit=ptx >"$folder/ptx"
$moecc run examples/hello.moe --target cuda:sm_90a,host --emit=cubin >"$folder/out"
disassembler=${MOECC_NVDISASM:-$(command -v nvdisasm || true)}
for kernel in mlp_up mlp_down; do
    sed -n "/^\/\/ kernel $kernel/,/^\/\/ kernel [^$kernel]/p" "$folder/ptx" >"$folder/product"
    for word in wgmma.mma_async cp.async.bulk.tensor mbarrier.try_wait setmaxnreg; do grep -q "$word" "$folder/product"; done
    grep -q mma.sync "$folder/product" && { echo "$kernel: products by warps"; exit 1; }
    cubin=$(awk -v kernel="$kernel" 'index($1, kernel) == 1 { print $NF }' "$folder/out")
    grep -q 'C75[0-9][0-9]' "$(dirname "$cubin")/log" && { cat "$(dirname "$cubin")/log"; exit 1; }
    [ -z "$disassembler" ] && continue
    "$disassembler" -c "$cubin" >"$folder/sass"
    grep -q 'HGMMA.64x128x16.F32.BF16' "$folder/sass"
    grep -q UTMALDG "$folder/sass"
    grep -Eq '\b(LDL|STL)\b' "$folder/sass" && { echo "$kernel: local memory"; exit 1; }
done

# An edited kernel: a mistake has its line in the edited file, and the stage whose kernel it is.
$moecc run examples/hello.moe --target cuda:sm_80,host --emit=cuda >"$folder/edited.cu"
line=$(grep -n 'const float factor\|sum_rows\|merge_first\[token\]' "$folder/edited.cu" | tail -n 1 | cut -d: -f1)
sed "${line}s/\$/ oops/" "$folder/edited.cu" >"$folder/wrong.cu"
status=0
$moecc run examples/hello.moe --target cuda:sm_80,host --use-cuda "$folder/wrong.cu" --emit=cubin >"$folder/out" 2>"$folder/err" ||
    status=$?
[ $status = 1 ]
grep -q "wrong.cu($line): error" "$folder/err"
grep -q "examples/hello.moe:.*note: kernel \`merge_4\` is stage \`combine\`'s" "$folder/err"
echo '// kernel nobody_7, 128 threads' >"$folder/unknown.cu"
status=0
$moecc run examples/hello.moe --target cuda:sm_80,host --use-cuda "$folder/unknown.cu" --emit=cubin 2>"$folder/err" || status=$?
[ $status = 1 ]
grep -q 'no kernel `nobody_7`' "$folder/err"

# Compiled once: four at the same time share the work, and a second call makes nothing.
export MOECC_CACHE="$folder/cache"
for i in 1 2 3 4; do
    $moecc run examples/hello.moe --target cuda:sm_80,host --emit=cubin >"$folder/out$i" &
done
wait
for i in 2 3 4; do cmp "$folder/out1" "$folder/out$i"; done
[ "$(find "$folder/cache" -name cubin | wc -l)" = 5 ]
[ -z "$(find "$folder/cache" -name '*.tmp')" ]
touch "$folder/then"
$moecc run examples/hello.moe --target cuda:sm_80,host --emit=cubin >/dev/null
[ -z "$(find "$folder/cache" -newer "$folder/then")" ]

# An executable carries the code of every chip, made once; without an executor for GPUs it says whose it is.
$moecc build examples/hello.moe --schedule serial --target cuda:sm_90a,sm_80 -o "$folder/hello" -v 2>"$folder/err"
grep -q "^10 CUDA kernels, 5 of them compiled now" "$folder/err" # sm_80 was there
$moecc build examples/hello.moe --schedule serial --target cuda:sm_90a,sm_80 -o "$folder/again" -v 2>"$folder/err"
grep -q '^10 CUDA kernels, 0 of them compiled now' "$folder/err"
cmp "$folder/hello" "$folder/again"
$moecc inspect "$folder/hello" >"$folder/plan"
[ "$(grep -c 'chip="sm_90a" form=cubin' "$folder/plan")" = 5 ]
[ "$(grep -c 'chip="sm_80" form=ptx' "$folder/plan")" = 5 ]
[ "$(grep -c '^plan_gpu_map' "$folder/plan")" = 4 ] # of the two products on sm_90a
[ "$(grep -ac "\.target sm_80" "$folder/hello")" -ge 5 ] # PTX is there as text; line tables of cubins quote it too
status=0
"$folder/hello" --tokens 8 -q 2>"$folder/err" || status=$?
[ $status = 3 ]
grep -q "kernels are for GPUs (sm_90a, sm_80), which this runtime does not drive yet" "$folder/err"
