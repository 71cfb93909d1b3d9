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

# Kernels of rows, packed and unpacked ones too, load and store 8 bytes or 16: never 4, on any chip. In the machine code too,
# where a disassembler is installed (CUDA's, or `pip install nvidia-cuda-nvcc`).
disassembler=${MOECC_NVDISASM:-$(command -v nvdisasm || true)}
for chip in ${MOE_CUDA_EXAMPLES:+sm_86 sm_89 sm_90a sm_100a sm_120a} sm_80; do
    for example in hello wire_formats; do
        $moecc run "examples/$example.moe" --target "cuda:$chip,host" --emit=ptx >"$folder/ptx" 2>"$folder/err"
        $moecc run "examples/$example.moe" --target "cuda:$chip,host" --emit=cubin >"$folder/out" 2>"$folder/err"
        awk -v chip="$chip" -v example="$example" '
            /^\/\/ kernel / { kernel = $3 }
            kernel !~ /^(copy_rows|merge|sum_rows|add|shift|gate)_/ { next }
            /^[ \t]*(ld|st)\.(global\.)?(relaxed\.|nc\.)?v4/ { wide[kernel] = 1 }
            /^[ \t]*(ld|st)\.(global\.)?(nc\.)?(v2\.)?(b|u|s|f)(8|16)[ \t]/ || /^[ \t]*(ld|st)\.(global\.)?(nc\.)?(b|u|s|f)32[ \t]/ {
                print example ", " chip ", " kernel ": narrow access: " $0; wrong = 1 }
            { seen[kernel] = 1 }
            END { for (k in seen) if (!wide[k]) { print example ", " k ": no access of 16 bytes"; wrong = 1 } exit wrong }' "$folder/ptx"
        [ -z "$disassembler" ] && continue
        awk '$1 ~ /^(copy_rows|merge|sum_rows|add|shift|gate)_/ { print $NF }' "$folder/out" | while read -r cubin; do
            "$disassembler" -c "$cubin" >"$folder/sass"
            grep -E '\b(LDG|STG)\.' "$folder/sass" | grep -Ev '\.(64|128)\b' && { echo "$example, $chip: $cubin"; exit 1; }
            grep -Eq '\b(LDL|STL)\b' "$folder/sass" && { echo "$example, $chip: local memory in $cubin"; exit 1; }
            true
        done
    done
done
$moecc run examples/hello.moe --target cuda:sm_80,host --emit=ptx >"$folder/ptx" # the products by mma.sync
grep -q 'mma.sync.aligned.m16n8k16' "$folder/ptx"
grep -q 'cp.async.cg.shared.global' "$folder/ptx"

for kernel in mlp_up mlp_down; do # results by 16 bytes, sums by 8
    sed -n "/^\/\/ kernel $kernel/,/^\/\/ kernel [^$kernel]/p" "$folder/ptx" >"$folder/product"
    grep -q 'st.v4\|st.global.v4' "$folder/product"
    grep -E '^\s*st\.(global\.)?(b|u|s|f)(8|16|32)\s' "$folder/product" && { echo "$kernel: narrow stores"; exit 1; }
done

# sm_90a: boxes of tensors and products by warpgroups, of bf16 and of E4M3, which the assembler has not put one after the
# other (its notes C75xx); in the machine code too.
products() { # EXAMPLE OPTIONS PTX SASS: of many rows, and of few, which are columns
    $moecc run "examples/$1.moe" $2 --target cuda:sm_90a,host --emit=ptx >"$folder/ptx"
    $moecc run "examples/$1.moe" $2 --target cuda:sm_90a,host --emit=cubin >"$folder/out"
    for kernel in mlp_up mlp_down; do
        sed -n "/^\/\/ kernel $kernel/,/^\/\/ kernel [^$kernel]/p" "$folder/ptx" >"$folder/product"
        for word in "wgmma.mma_async.*$3" cp.async.bulk.tensor mbarrier.try_wait setmaxnreg; do grep -q "$word" "$folder/product"; done
        grep -q mma.sync "$folder/product" && { echo "$1, $kernel: products by warps"; exit 1; }
        cubin=$(awk -v kernel="$kernel" 'index($1, kernel) == 1 { print $NF }' "$folder/out")
        grep -q 'C75[0-9][0-9]' "$(dirname "$cubin")/log" && { cat "$(dirname "$cubin")/log"; exit 1; }
        [ -z "$disassembler" ] && continue
        "$disassembler" -c "$cubin" >"$folder/sass"
        for word in $4; do grep -q "$word" "$folder/sass" || { echo "$1, $kernel: no $word"; exit 1; }; done
        grep -q UTMALDG "$folder/sass"
        grep -Eq '\b(LDL|STL)\b' "$folder/sass" && { echo "$1, $kernel: local memory"; exit 1; }
        true
    done
}
products hello "" f32.bf16.bf16 "HGMMA.64x128x16.F32.BF16 HGMMA.64x8x16.F32.BF16 HGMMA.64x32x16.F32.BF16"
products fp8_arithmetic "--schedule serial" f32.e4m3.e4m3 "QGMMA.64x64x32.F32.E4M3.E4M3 QGMMA.64x8x32.F32.E4M3.E4M3 QGMMA.64x24x32.F32.E4M3.E4M3"

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

# A library that is asked for by name is not replaced by another.
for name in /nonexistent libm.so.6; do
    status=0
    MOECC_CACHE="$folder/none" MOECC_NVRTC=$name $moecc run examples/hello.moe --target cuda:sm_80,host --emit=cubin 2>"$folder/err" || status=$?
    [ $status = 3 ] && grep -q "MOECC_NVRTC names \`$name\`, which is no NVRTC: " "$folder/err"
done

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

# When all is known, NVRTC is not even loaded, and a build takes some tens of milliseconds: the best of five, with much room.
LD_DEBUG=files $moecc build examples/hello.moe --schedule serial --target cuda:sm_90a,sm_80 -o "$folder/again" 2>"$folder/err"
grep -q 'file=libLLVM' "$folder/err" # such lines are there
grep -q 'file=.*libnvrtc' "$folder/err" && { echo "NVRTC is loaded for kernels that are known"; exit 1; }
best=1000000000
for i in 1 2 3 4 5; do
    from=$(date +%s%N)
    $moecc build examples/hello.moe --schedule serial --target cuda:sm_90a,sm_80 -o "$folder/again"
    took=$(($(date +%s%N) - from))
    [ $took -lt $best ] && best=$took
done
[ $best -lt 500000000 ] || { echo "a build of known kernels takes $((best / 1000000)) ms"; exit 1; }
$moecc inspect "$folder/hello" >"$folder/plan"
[ "$(grep -c 'chip="sm_90a" form=cubin' "$folder/plan")" = 5 ]
[ "$(grep -c 'chip="sm_80" form=ptx' "$folder/plan")" = 5 ]
[ "$(grep -c '^plan_gpu_map' "$folder/plan")" = 6 ] # of the two products on sm_90a
[ "$(grep -ac "\.target sm_80" "$folder/hello")" -ge 5 ] # PTX is there as text; line tables of cubins quote it too
status=0
"$folder/hello" --tokens 8 -q 2>"$folder/err" || status=$?
[ $status = 3 ]
grep -q "kernels are for GPUs (sm_90a, sm_80), which this runtime does not drive yet" "$folder/err"
status=0
$moecc build examples/hello.moe --target cuda:sm_90a,host -o "$folder/host" 2>"$folder/err" || status=$?
[ $status = 1 ] && [ ! -e "$folder/host" ]
grep -q 'E0901.*cannot carry the CUDA kernels that `cuda(sm_90a,host)` runs on the CPU' "$folder/err"
grep -q '`build --target cuda:sm_90a` carries their code for the GPU' "$folder/err"
