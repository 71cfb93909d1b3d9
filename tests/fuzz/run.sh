#!/bin/sh
# Runs every fuzz target for some seconds on seeds made from examples and tests, or says how many lines of each reader the
# seeds alone reach. Usage: run.sh BUILD_DIR SECONDS | cover
set -u
build=$1
seconds=$2
work=$build/corpus
targets="moe json plan safetensors records"
failed=0
export LLVM_PROFILE_FILE=/dev/null

# Seeds: what the tests read, and small plans with every field changed in turn.
rm -rf "$work/seeds"
for target in $targets; do
    mkdir -p "$work/seeds/$target" "$work/$target"
done
number=0
for file in $(find examples stdlib tests -name '*.moe'); do
    number=$((number + 1))
    cp "$file" "$work/seeds/moe/$number.moe"
done
awk -v to="$work/seeds/moe/page" '/^```moe/ { file = to (++n) ".moe"; next } /^```/ { file = ""; next } file { print > file }' \
    compiler/explain/pages/*.md
awk -v to="$work/seeds/moe/snippet" 'NF && !/^#/ { gsub(/\\n/, "\n"); print > (to (++n) ".moe") }' tests/fuzz/snippets.txt
# a program with one thing written as newcomers write it, again and again
awk -v to="$work/seeds/moe/habit" -v RS='\n====\n' 'FNR == NR { program = $0; next } {
    arrow = index($0, "\n->\n"); line = index($0, "\n----\n"); right = substr($0, 1, arrow - 1)
    at = index(program, right); if (!arrow || !at) next
    file = to FNR ".moe"
    printf "%s%s%s\n", substr(program, 1, at - 1), substr($0, arrow + 4, line - arrow - 4), substr(program, at + length(right)) > file
    close(file)
}' tests/diagnostics/habits.moe tests/diagnostics/habits.txt
printf '\357\273\277const a = 1;\377 \001 "\000" // \000\r\nconst b = 2;' >"$work/seeds/moe/bytes.moe"
find examples tests -name '*.json' -size -64k -exec cp --backup=numbered {} "$work/seeds/json" \;
awk -v to="$work/seeds/json/snippet" 'NF && !/^#/ { print > (to (++n) ".json") }' tests/fuzz/json.txt
find examples tests -name '*.safetensors' -size -256k -exec cp --backup=numbered {} "$work/seeds/safetensors" \;
number=0
while IFS= read -r header; do
    number=$((number + 1))
    case $header in
    '#'* | '') continue ;;
    'index '*)
        printf '%s' "${header#index }" >"$work/seeds/safetensors/index$number"
        continue
        ;;
    esac
    bytes=$(printf '%s' "$header" | wc -c)
    { printf "\\$(printf %03o "$bytes")\\000\\000\\000\\000\\000\\000\\000%s" "$header"; printf '0123456789abcdef'; } \
        >"$work/seeds/safetensors/header$number"
done <tests/fuzz/safetensors.txt
printf 'short' >"$work/seeds/safetensors/short"
printf '\377\377\377\377\377\377\377\377{}' >"$work/seeds/safetensors/huge"
printf '\377\000\000\000\000\000\000\000{}' >"$work/seeds/safetensors/long"
for pipeline in one two three chunked relayed gated formats coded bounded relayed_waves relayed_chunks copied copied_far; do
    build/moecc check tests/fuzz/small.moe --pipeline "$pipeline" --emit=program >"$work/seeds/records/$pipeline.txt" || failed=1
    "$build/fuzz-seeds" "$work/seeds/plan/$pipeline" <"$work/seeds/records/$pipeline.txt" || failed=1
done
for stage in module graph schedule; do
    build/moecc check tests/fuzz/small.moe --pipeline gated --emit=$stage >"$work/seeds/records/$stage.txt" || failed=1
done
awk -v to="$work/seeds/records/snippet" 'NF && !/^#/ { gsub(/\\n/, "\n"); print > (to (++n) ".txt") }' tests/fuzz/records.txt

readers() { # the files that a target tries
    case $1 in
    moe) find compiler/syntax -name '*.c' ! -name 'sexpr.c' ! -name 'tokens.c' ! -name 'expression.c' ;; # but printers
    json) echo compiler/check/json.c ;;
    plan) find runtime/plan -name 'plan.c' -o -name 'validate*.c' -o -name 'slots.h' ;;
    safetensors) echo runtime/weights/safetensors.c ;;
    records) echo runtime/plan/records_text.c ;;
    esac
}

cover() { # lines of its reader that a target's seeds reach
    llvm=$(dirname "$(readlink -f "$(command -v clang-19 || command -v clang)")")
    LLVM_PROFILE_FILE=$work/$1.profraw "$build/fuzz-$1" -runs=0 -max_len=300000 -artifact_prefix="$work/" "$work/seeds/$1" >"$work/$1.log" 2>&1 &&
        "$llvm/llvm-profdata" merge -sparse "$work/$1.profraw" -o "$work/$1.profdata" &&
        "$llvm/llvm-cov" report "$build/fuzz-$1" -instr-profile="$work/$1.profdata" $(readers "$1") >"$work/$1.cover" 2>/dev/null ||
        { failed=1; tail -n 20 "$work/$1.log"; }
    # file, regions, missed, cover, functions, missed, executed, lines, missed, cover
    awk -v target="$1" '$1 ~ /\.[ch]$/ || $1 == "TOTAL" { printf "%-12s %-28s %6d lines, %s reached\n", target, $1, $8, $10 }' "$work/$1.cover"
}

fuzz() {
    log=$work/$1.log
    if "$build/fuzz-$1" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 -max_len=300000 \
        -artifact_prefix="$work/" "$work/$1" "$work/seeds/$1" >"$log" 2>&1; then
        echo "fuzz $1: $(sed -n 's/^Done \(.*\)$/\1/p' "$log")"
    else
        echo "FAILED  fuzz $1: $log"
        grep -E 'ERROR|SUMMARY|Test unit|runtime error' "$log" | head
        failed=1
    fi
}

for target in ${FUZZ_TARGETS:-$targets}; do
    if [ "$seconds" = cover ]; then cover "$target"; else fuzz "$target"; fi
done
exit $failed
