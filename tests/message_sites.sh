#!/bin/sh
# Which calls that tell the user something no test has reached. Usage: tests/message_sites.sh BUILD (a `make MODE=cov` build
# whose moe-tests has run). Runs the tests of commands with that build, too: in a folder that shows it as `build`. Prints
# file:line: code; the last line counts.
set -u
build=$1
calls='(^|[^a-z_])(diag_error|diag_warning|lower_refuse|usage_error|fatal)\('
sites=$(mktemp)
trap 'rm -f "$sites"' EXIT
view=$build/view
mkdir -p "$view"
for name in Makefile README.md compiler examples grammar runtime stdlib tests; do
    ln -sfn "$PWD/$name" "$view/$name"
done
ln -sfn .. "$view/build"
for script in exit_codes limits inputs outputs traces schedules copies tutorial calibrate io_errors; do
    (cd "$view" && sh "tests/commands/$script.sh" >"build/$script.log" 2>&1)
done
for data in $(find "$build/obj/compiler" -name '*.gcno' | sort); do
    [ -f "${data%.gcno}.gcda" ] || continue
    source=${data#"$build/obj/"}
    gcov -t "$data" 2>/dev/null | awk -F: -v file="${source%.gcno}.c" -v calls="$calls" '
        $2 == "    0" && $3 == "Source" { mine = $4 == file }
        mine && $0 ~ calls && $1 !~ /-$/ {
            state = $1 ~ /#####/ ? "never" : "reached"
            code = $0; sub(/^[^:]*:[^:]*:[ \t]*/, "", code); gsub(/ /, "", $2)
            print state "\t" file ":" $2 ": " code
        }' >>"$sites"
done
sed -n 's/^never\t//p' "$sites"
echo "$(grep -c . "$sites") calls, $(grep -c ^never "$sites") of them never reached"
