# What every CUDA kernel of the examples takes on every chip, as NVRTC's assembler reports it. The table that it prints is
# kept in tests/cuda/resources.txt: `sh tests/cuda/resources.sh > tests/cuda/resources.txt` writes it anew, to be reviewed
# like code. Needs build/moecc and NVRTC. Usage: resources.sh [EXAMPLE...]
set -eu
[ $# -gt 0 ] || set -- hello olmoe mixtral wire_formats schedules/expert_waves deepseek_v3 fp8_arithmetic
build/moecc run examples/hello.moe --target cuda:sm_80,host --emit=cubin -q | head -n 1
echo "example, kernel, chip, registers, stack, spills, shared, stages, blocks on an SM, flops and bytes of a tile"
for example in "$@"; do
    for chip in sm_80 sm_86 sm_89 sm_90a sm_100a sm_120a; do
        build/moecc run "examples/$example.moe" --target "cuda:$chip,host" --emit=cubin -q 2>/dev/null |
            awk -v example="$example" 'NR > 2 { printf "%-22s %-14s %-8s %4s %3s %3s %6s %2s %3s %11s %9s\n",
                example, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10 }'
    done
done
