# `build` makes an executable that needs only libc, runs in an empty environment from another folder, and gives the bytes
# that `run` gives; it works after `make install` too, from the installed files alone.
set -eu
root=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
data=tests/data/olmoe-tiny
build/moecc run tests/end_to_end/olmoe-tiny.moe --input $data/input.safetensors --output "$folder/run.safetensors" -q
build/moecc build tests/end_to_end/olmoe-tiny.moe -o "$folder/olmoe"
ldd "$folder/olmoe" | grep -vE 'linux-vdso|ld-linux|libc\.so|statically' && { echo "needs more than libc"; exit 1; }
cd "$folder"
env -i ./olmoe --weights "$root/$data" --input "$root/$data/input.safetensors" --output built.safetensors -q
cmp run.safetensors built.safetensors
# One layer alone, by `run` and by the executable, which was compiled for both.
(cd "$root" && build/moecc run tests/end_to_end/olmoe-tiny.moe --layer 1 --input $data/input.safetensors \
    --output "$folder/layer-run.safetensors" -q)
env -i ./olmoe --weights "$root/$data" --layer 1 --input "$root/$data/input.safetensors" --output layer-built.safetensors -q
cmp layer-run.safetensors layer-built.safetensors
cd "$root"
make --no-print-directory install DESTDIR="$folder/root" >/dev/null
mkdir "$folder/elsewhere"
cp examples/hello.moe "$folder/elsewhere/"
cd "$folder/elsewhere"
"$folder/root/usr/local/bin/moecc" build hello.moe -o hello
env -i ./hello --tokens 64 --output a.safetensors -q
"$folder/root/usr/local/bin/moecc" run hello.moe --tokens 64 --output b.safetensors -q
cmp a.safetensors b.safetensors
env -i ./hello --tokens 64 --emulate-links --pin --output c.safetensors -q
cmp a.safetensors c.safetensors
status=0
env -i ./hello --ranks 3 -q 2>message || status=$?
[ $status = 2 ] || [ $status = 1 ]
grep -q ranks message
"$folder/root/usr/local/bin/moecc" inspect hello | head -n 1 | grep -q '^ir plan'
