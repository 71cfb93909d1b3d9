# Executables on other machines than this one, under qemu-user: older x86-64 processors, for which an executable brings
# code of its own and takes it by itself; and aarch64, made here with a cross-built carrier. Needs what `.ci/deps cross`
# installs; without it nothing is tested, and this says so.
set -eu
for tool in aarch64-linux-gnu-gcc qemu-aarch64 qemu-x86_64; do
    command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 0; }
done
[ -e /usr/lib/aarch64-linux-gnu/libjansson.a ] || { echo "skipped: no jansson for aarch64"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
within() { # within BOUND: the report's relative L2
    grep '^against' "$folder/report" |
        awk -v bound="$1" '{ sub(/.*relative L2 /, ""); n++; bad += $1 + 0 > bound + 0; print "relative L2", $1 + 0 } END { exit n != 1 || bad }'
}

# One executable for all levels; one for a level alone says what it lacks.
build/moecc build tests/end_to_end/olmoe-tiny.moe -o "$folder/all"
build/moecc build tests/end_to_end/olmoe-tiny.moe --cpu-level v3 -o "$folder/v3"
set -- --weights tests/data/olmoe-tiny --input tests/data/olmoe-tiny/input.safetensors
build/moecc run tests/end_to_end/olmoe-tiny.moe --cpu-level v2 "$@" --output "$folder/v2.safetensors" -q
for pair in Nehalem:v2 Haswell:v3; do
    timeout 120 qemu-x86_64 -cpu "${pair%:*}" "$folder/all" "$@" --reference "$folder/v2.safetensors" >"$folder/report" 2>"$folder/message"
    head -n 1 "$folder/report" | grep "cpu ${pair#*:}\$"
    within "$(case $pair in *v2) echo 0 ;; *) echo 5e-3 ;; esac)"
done
status=0
timeout 120 qemu-x86_64 -cpu Nehalem "$folder/v3" "$@" 2>"$folder/message" || status=$?
[ $status = 3 ]
grep -q 'needs CPU level `v3`, which this machine lacks' "$folder/message"
carrier=build/aarch64/moe-stub
make --no-print-directory B=build/aarch64 CC=aarch64-linux-gnu-gcc $carrier >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
for model in olmoe-tiny olmoe-tiny-f32 deepseek-v3-tiny qwen2-moe-tiny; do
    build/moecc build tests/end_to_end/$model.moe --cpu-level neon --carrier $carrier -o "$folder/$model"
    set -- --weights tests/data/$model --input tests/data/$model/input.safetensors
    build/moecc run tests/end_to_end/$model.moe "$@" --output "$folder/here.safetensors" -q
    timeout 120 qemu-aarch64 "$folder/$model" "$@" --reference "$folder/here.safetensors" >"$folder/report"
    within "$(case $model in *f32) echo 1e-6 ;; *) echo 5e-3 ;; esac)"
done
# Kernels and carrier must be for one machine.
status=0
build/moecc build examples/hello.moe --cpu-level neon -o "$folder/mixed" 2>"$folder/message" || status=$?
[ $status = 3 ]
grep -q 'kernels for aarch64 cannot be carried by a program for x86-64' "$folder/message"
[ ! -e "$folder/mixed" ]
