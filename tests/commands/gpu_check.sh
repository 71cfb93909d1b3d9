# make gpu-check on a machine without a GPU: it says so and fails; with a stand-in for the driver, whose kernels the CPU runs,
# it goes through the models, and refuses what a driver would.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
status=0
MOECC_LIBCUDA=/nowhere/libcuda.so sh tests/gpu/check.sh build/moe-tests gpu >"$folder/out" 2>&1 || status=$?
[ $status = 1 ]
grep -q 'NVRTC is not installed' "$folder/out" && { echo "skipped: NVRTC is not installed"; exit 0; }
grep -q 'no GPU to check the kernels on: /nowhere/libcuda.so cannot be loaded' "$folder/out"

make -s build/libfakecuda.so
export MOECC_LIBCUDA="$PWD/build/libfakecuda.so" MOECC_CACHE="$PWD/build/cuda-cache"
sh tests/gpu/check.sh build/moe-tests layers gpu >"$folder/out" 2>&1 || { cat "$folder/out"; exit 1; }
[ "$(grep -c 'layer [0-9]* on fake GPU: .* launches, relative L2 .*e-0[3-9]' "$folder/out")" = 3 ]
[ "$(grep -c 'tokens .* TFLOP/s .* of the peak, error .*, weights .* GB/s, .* of a copy' "$folder/out")" = 10 ]
for form in bf16 'FP8 arithmetic' 'E4M3 weights' 'MXFP4 weights'; do grep -q "  $form .* tokens .* of the peak" "$folder/out"; done
grep -q 'products alone reach .* TFLOP/s in bf16, .* of E4M3 codes; a copy .* GB/s' "$folder/out"
grep -q 'pack .* GB/s, .* merge .* GB/s' "$folder/out"
MOE_FAKE_CHIP=75 sh tests/gpu/check.sh build/moe-tests gpu >"$folder/out" 2>&1 && { echo "sm_75 has kernels"; exit 1; }
grep -q 'no GPU to check the kernels on: .*sm_75' "$folder/out"
