#!/bin/sh
# Runs every fuzz target for some seconds on seeds made from examples and tests. Usage: run.sh BUILD_DIR SECONDS
set -u
build=$1
seconds=$2
work=$build/corpus
failed=0
rm -rf "$work/seeds"
for target in moe json plan safetensors; do
    mkdir -p "$work/seeds/$target" "$work/$target"
done
number=0
for file in $(find examples stdlib tests -name '*.moe'); do
    number=$((number + 1))
    cp "$file" "$work/seeds/moe/$number.moe"
done
awk -v to="$work/seeds/moe/page" '/^```moe/ { file = to ++n ".moe"; next } /^```/ { file = ""; next } file { print > file }' \
    compiler/explain/pages/*.md
find examples tests -name '*.json' -size -64k -exec cp --backup=numbered {} "$work/seeds/json" \;
echo '{"hidden_size": 64, "a": {"b": 2}, "model_type": "x", "scale": 1.5, "yes": true}' >"$work/seeds/json/small.json"
find examples tests -name '*.safetensors' -size -256k -exec cp --backup=numbered {} "$work/seeds/safetensors" \;
if build/moecc build examples/hello.moe -o "$work/hello" 2>/dev/null; then
    # the trailer of a carrier: offset and bytes of its plan
    set -- $(tail -c 24 "$work/hello" | od -An -t u8 -N 16)
    tail -c +$(($1 + 1)) "$work/hello" | head -c "$2" >"$work/seeds/plan/hello.plan"
fi
for target in moe json plan safetensors; do
    log=$work/$target.log
    if "$build/fuzz-$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 -max_len=300000 -artifact_prefix="$work/" \
        "$work/$target" "$work/seeds/$target" >"$log" 2>&1; then
        echo "fuzz $target: $(sed -n 's/^Done \(.*\)$/\1/p' "$log")"
    else
        echo "FAILED  fuzz $target: $log"
        grep -E 'ERROR|SUMMARY|Test unit|runtime error' "$log" | head
        failed=1
    fi
done
exit $failed
