#!/bin/sh
# The library's documentation is what its command writes. Usage: sh tests/commands/schedules.sh (from the root, after make).
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
MOECC=${MOECC:-build/moecc} sh examples/schedules/timelines.sh >"$work/README.md"
diff -u examples/schedules/README.md "$work/README.md" || {
    echo "examples/schedules/README.md is not what examples/schedules/timelines.sh writes"
    exit 1
}
[ "$(grep -c '^## ' "$work/README.md")" = "$(grep -c '^schedule ' stdlib/std/schedules.moe)" ]
