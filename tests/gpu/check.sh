# The CUDA kernels on this machine's GPU: every kind of kernel against float64 or the native kernels' bytes, its outputs
# poisoned before; whole layers against their reference; the experts of published models and the kernels of rows, timed; compute-sanitizer on some of it, where it
# is installed. Exit code 1 where something is wrong or there is no GPU. Usage: check.sh build/moe-tests [SUITE...]
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
