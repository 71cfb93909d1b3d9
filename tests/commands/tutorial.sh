#!/bin/sh
# The tutorial does what it says: its files are written, its commands run, their output compared with what it shows; `...` stands
# for any lines. Usage: sh tests/commands/tutorial.sh (from the root, after make).
set -u
PATH=$PWD/build:$PATH
tutorial=$PWD/examples/tutorial/README.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/blocks" "$work/files"

# Each block is a file of its own: NNN.moe.NAME for a file to write, NNN.run for commands with what they print.
awk -v to="$work/blocks" '
    /^```/ && inside { close(out); inside = 0; next }
    /^```(moe|console)/ {
        inside = 1
        out = sprintf("%s/%03d.%s", to, ++count, $1 == "```moe" ? "moe." $2 : "run")
        next
    }
    inside { print > out }' "$tutorial"

# expect SHOWN GOT: line for line, but for what `...` stands for.
expect() {
    awk -v got="$2" '
        BEGIN { while ((getline line < got) > 0) found[++n] = line; at = 1 }
        $0 == "..." { loose = 1; next }
        {
            while (loose && at <= n && found[at] != $0) at++
            if (at > n || found[at] != $0) { print "expected: " $0; print "got:      " found[at]; bad = 1; exit 1 }
            at++
            loose = 0
        }
        END { if (!bad && !loose && at <= n) { print "not shown: " found[at]; exit 1 } }' "$1"
}

wrong=0
commands=0
run_one() { # run_one COMMAND SHOWN
    [ -n "$1" ] || return 0
    commands=$((commands + 1))
    (cd "$work/files" && sh -c "$1") >"$work/got" 2>&1
    expect "$2" "$work/got" >"$work/why" || {
        echo "$ $1"
        cat "$work/why"
        wrong=1
    }
}
run_block() {
    command=
    : >"$work/shown"
    while IFS= read -r line; do
        case $line in
        '$ '*)
            run_one "$command" "$work/shown"
            command=${line#'$ '}
            : >"$work/shown"
            ;;
        *) printf '%s\n' "$line" >>"$work/shown" ;;
        esac
    done <"$1"
    run_one "$command" "$work/shown"
}

for block in "$work"/blocks/*; do
    name=${block##*/}
    case $name in
    *.run) run_block "$block" ;;
    *) cp "$block" "$work/files/${name#*.moe.}" ;;
    esac
done
[ "$commands" -ge 10 ] || {
    echo "only $commands commands found"
    wrong=1
}
exit $wrong
