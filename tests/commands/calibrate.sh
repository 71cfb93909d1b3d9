# What `moecc calibrate` writes is part of a `.moe` file: a pipeline on its cluster checks, simulates and runs.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
m=$PWD/build/moecc
"$m" calibrate --ranks 2 -q -o "$folder/here.moe" || exit 1
{ sed -e '/^import std.hw/d; s/on laptop/on here/; s/= laptop/= here/' examples/hello.moe; cat "$folder/here.moe"; } >"$folder/hello.moe"
"$m" check "$folder/hello.moe" || exit 1
"$m" simulate "$folder/hello.moe" --json >"$folder/prediction" || exit 1
grep -q '"latency_s":[0-9.e-]*[1-9]' "$folder/prediction" || { cat "$folder/prediction"; exit 1; }
"$m" run "$folder/hello.moe" --tokens 64 -q | grep -q "2 ranks" || exit 1
"$m" calibrate nothing.moe 2>"$folder/err" && exit 1
grep -q "takes no file" "$folder/err"
