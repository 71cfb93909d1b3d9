# Executables for aarch64, made here with a cross-built carrier and run under qemu-user, against this machine's results.
# Needs what `.ci/deps cross` installs; without it nothing is tested, and this says so.
set -eu
for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
    command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 0; }
done
[ -e /usr/lib/aarch64-linux-gnu/libjansson.a ] || { echo "skipped: no jansson for aarch64"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
carrier=build/aarch64/moe-stub
make --no-print-directory B=build/aarch64 CC=aarch64-linux-gnu-gcc $carrier >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
for model in olmoe-tiny olmoe-tiny-f32 deepseek-v3-tiny qwen2-moe-tiny; do
    build/moecc build tests/end_to_end/$model.moe --cpu-level neon --carrier $carrier -o "$folder/$model"
    set -- --weights tests/data/$model --input tests/data/$model/input.safetensors
    build/moecc run tests/end_to_end/$model.moe "$@" --output "$folder/here.safetensors" -q
    timeout 120 qemu-aarch64 "$folder/$model" "$@" --reference "$folder/here.safetensors" >"$folder/report"
    grep '^against' "$folder/report"
    bound=$(case $model in *f32) echo 1e-6 ;; *) echo 5e-3 ;; esac)
    sed -n 's/^against.*relative L2 \([0-9.e+-]*\),.*/\1/p' "$folder/report" | awk -v bound=$bound '{ n++; bad += $1 > bound } END { exit n != 1 || bad }'
done
# Kernels and carrier must be for one machine.
status=0
build/moecc build examples/hello.moe --cpu-level neon -o "$folder/mixed" 2>"$folder/message" || status=$?
[ $status = 3 ]
grep -q 'kernels for aarch64 cannot be carried by a program for x86-64' "$folder/message"
[ ! -e "$folder/mixed" ]
