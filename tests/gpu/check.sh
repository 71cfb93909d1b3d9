# The CUDA kernels on this machine's GPU: every kind of kernel against float64 or the native kernels' bytes, its outputs
# poisoned before; whole layers against their reference; the experts of published models in bf16, in FP8 arithmetic and with
# weights that are codes, and the kernels of rows, timed; compute-sanitizer on some of it, where it is installed. Exit code 1
# where something is wrong or there is no GPU. Usage: check.sh build/moe-tests [SUITE...]
#
# It is to take less than five minutes. What is timed: 1.7 GFLOP a token for the three models together, 29908 tokens over all
# forms, seven launches each: 360 TFLOP, and 0.7 TB of weights: two seconds on an H100. Around that, estimated: 10^10 products
# in float64 on the CPU for the rows that are spot-checked, 40 s; two hundred kernels by NVRTC, a minute, once; filling 17 GB
# of weights, seconds.
set -eu
tests=$1
shift
export MOE_GPU=1
if ! "$tests" gpu_opens >/dev/null 2>"$tests.gpu"; then
    grep 'no GPU' "$tests.gpu" || cat "$tests.gpu"
    rm -f "$tests.gpu"
    exit 1
fi
rm -f "$tests.gpu"
[ $# -gt 0 ] || set -- cuda product layers gpu
"$tests" "$@"
if command -v compute-sanitizer >/dev/null 2>&1; then
    for tool in memcheck racecheck synccheck; do compute-sanitizer --tool "$tool" --error-exitcode 1 "$tests" product layers; done
else
    echo "compute-sanitizer is not installed: skipped"
fi
