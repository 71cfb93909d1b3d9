#!/bin/sh
# Writes the library's documentation: each schedule of std/schedules.moe, its paragraph, and the timeline that `moecc simulate`
# predicts for it on the layer and cluster of library.moe. Usage, from the repository's root after `make`:
#
#   sh examples/schedules/timelines.sh > examples/schedules/README.md
set -eu
moecc=${MOECC:-build/moecc}
library=stdlib/std/schedules.moe
model=examples/schedules/library.moe

cat <<'TEXT'
# The schedules of std.schedules

Written by `sh examples/schedules/timelines.sh`. Each schedule fits any layer with the stages it lists (`import std.schedules {
ladder };`), is proven like one of your own, and gives the bytes of `serial`; schedules with `split experts` round partial sums
per wave. Timelines are predictions for four layers of [library.moe](library.moe): 4096 tokens a rank, two nodes of four H800, one
layer from the middle of the step. A line a stream, a letter a stage (attn, route, dispatch, expert, combine, shared, merge),
the digit its micro-batch or wave, `x` where the wire works and nothing computes; below, what the step's critical path is made of
and the longest gaps of streams that compute.

`moecc simulate examples/schedules/library.moe --schedule 'ladder(n: 8)'` shows one with other knobs; your own are ten lines, as
the [tutorial](../tutorial/README.md) shows.
TEXT

for name in $(sed -n 's/^schedule \([a-z_]*\).*/\1/p' "$library"); do
    printf '\n## `%s`\n\n' "$name"
    # Its paragraph: the run of /// lines before it.
    awk -v name="$name" '/^\/\/\// { text = text substr($0, 5) "\n"; next }
        $1 == "schedule" { split($2, parts, "("); if (parts[1] == name) { printf "%s", text; exit } }
        { text = "" }' "$library"
    printf '\n```\n'
    "$moecc" simulate "$model" --schedule "$name" --color=never |
        grep -v -e ' utilization ' -e ' bubble ' -e 'no schedule takes' | sed 's/, peak memory .*//'
    printf '```\n'
done
