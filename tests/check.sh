#!/bin/sh
# Every test: warnings under a second compiler, the suites plain, under ASan + UBSan (with assertions, IR checkers and
# guard pages) and under TSan, then the commands as a user calls them. Ends in one line: N passed, N failed. Most tests
# keep one processor busy, so two halves run side by side. Usage: tests/check.sh (from the repository root, after make deps).
set -u
jobs=$(nproc 2>/dev/null || echo 2)
log=build/check
mkdir -p "$log"
passed=0
failed=0

report() { # report NAME STATUS: one test of this script
    if [ "$2" = 0 ]; then
        passed=$((passed + 1))
        echo "ok      $1"
    else
        failed=$((failed + 1))
        echo "FAILED  $1"
    fi
}

build() { # build MODE TARGET...
    mode=$1
    shift
    make --no-print-directory -j"$jobs" MODE="$mode" "$@" >"$log/build-$mode.log" 2>&1
    status=$?
    report "build $mode" $status
    [ $status = 0 ] || tail -n 30 "$log/build-$mode.log"
    return $status
}

suites() { # suites NAME BINARY SUITE...: runs CUnit, adds its tests to the counts
    name=$1
    binary=$2
    shift 2
    "$binary" "$@" >"$log/$name.log" 2>&1
    status=$?
    # CUnit's summary: "tests  total ran passed failed inactive"
    line=$(sed -n 's/^ *tests *\([0-9]*\) *\([0-9]*\) *\([0-9]*\) *\([0-9]*\) .*/\3 \4/p' "$log/$name.log" | tail -n 1)
    if [ -z "$line" ]; then
        report "$name (did not finish)" 1
        tail -n 40 "$log/$name.log"
        return
    fi
    passed=$((passed + ${line% *}))
    failed=$((failed + ${line#* }))
    echo "$name: ${line% *} passed, ${line#* } failed"
    echo "        seconds: $(sed -n 's/^seconds \([a-z_]*\) \([0-9]*\)\.[0-9],.*/\2 \1/p' "$log/$name.log" | sort -nr | awk '$1 > 1 { printf "%s %s, ", $2, $1 } END { print "all " NR " suites" }')"
    if [ "$status" != 0 ]; then
        [ "${line#* }" = 0 ] && report "$name (exit status $status)" 1
        grep -E -B1 -A4 'FAILED|^ +[0-9]+\. |ERROR|WARNING: ThreadSanitizer|runtime error' "$log/$name.log" | head -n 80
    fi
}

build release all test-binary
built=$?
build asan test-binary
asan=$?
build tsan test-binary
tsan=$?

# Under sanitizers what a test tries again and again is tried less often: the plain run and `make check-long` try it all.
sanitized() {
    [ $asan = 0 ] || return
    MOE_PROOF_PROGRAMS=2000 MOE_MUTATIONS=200 MOE_RANDOM_SCHEDULES=20 \
        ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 suites asan build/asan/moe-tests
}

plain_and_commands() {
    [ $built = 0 ] && suites plain build/moe-tests
    make --no-print-directory lint >"$log/lint.log" 2>&1
    report "no warnings under clang" $?
    strays=$(git ls-files 2>/dev/null | grep -vE '^(\.ci/|\.gitignore$|\.clang-format$|Makefile$|README\.md$|(compiler|examples|grammar|runtime|stdlib|tests)/)' | head -n 5)
    [ -z "$strays" ]
    report "nothing strays into the root${strays:+: $strays}" $?
    [ $tsan = 0 ] &&
        TSAN_OPTIONS=halt_on_error=0:exitcode=66:suppressions=tests/tsan.supp suites tsan build/tsan/moe-tests runtime invariants shapes races links
    for script in tests/commands/*.sh; do
        began=$(date +%s)
        sh "$script" >"$log/$(basename "$script" .sh).log" 2>&1
        status=$?
        report "commands: $(basename "$script" .sh), $(($(date +%s) - began)) s" $status
        grep '^skipped' "$log/$(basename "$script" .sh).log"
        [ $status = 0 ] || tail -n 20 "$log/$(basename "$script" .sh).log"
    done
}

half() { # half FUNCTION: runs it with counts of its own, which go to a file
    passed=0
    failed=0
    "$1"
    echo "$passed $failed" >"$log/$1.count"
}

rm -f "$log"/*.count
half sanitized >"$log/sanitized.out" 2>&1 &
(half plain_and_commands)
wait
cat "$log/sanitized.out"
for part in sanitized plain_and_commands; do
    if read -r more wrong <"$log/$part.count"; then
        passed=$((passed + more))
        failed=$((failed + wrong))
    else
        report "$part (did not finish)" 1
    fi
done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
