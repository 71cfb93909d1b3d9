# Interrupted, full, forbidden: a command that cannot finish leaves what was there before, nothing half written and no
# temporary file; a signal ends it with 128 + its number; what cannot be written is named.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
wrong=0
m=$PWD/build/moecc
say() { echo "$*"; wrong=1; }
cp examples/hello.moe "$folder/a.moe"
mkdir "$folder/tmp"
export TMPDIR="$folder/tmp"
cd "$folder"
clean() { # clean WHAT: only what was here before
    left=$(ls -A | grep -vxE 'a\.moe|tmp|out|err|kept\.moe|whole|mine'; ls -A tmp)
    [ -z "$left" ] || { say "$1 left: $left"; rm -rf $left; }
}
stopped() { # stopped STATUS SIGNAL SECONDS COMMAND...
    expected=$1 signal=$2 seconds=$3
    shift 3
    timeout --preserve-status -s "$signal" "$seconds" "$@" >out 2>err
    got=$?
    [ $got = "$expected" ] || { cat err; say "$got, not $expected: $*"; }
    clean "$*"
}
# A signal during the work, at whatever it is by then.
run="$m run a.moe -q --iters 1000000 --output y.safetensors --stats s.json --trace t.json"
stopped 130 INT 0.7 $run --tokens 512
stopped 143 TERM 0.7 $run --tokens 64 --emulate-links
stopped 129 HUP 0.1 $run --tokens 64
echo old >kept.moe
stopped 130 INT 0.5 "$m" calibrate --ranks 2 -q -o kept.moe # which has its file open all along
[ "$(cat kept.moe)" = old ] || say "calibrate: an interrupted run replaced its file"
stopped 143 TERM 0.5 "$m" calibrate --ranks 2 -q -o new.moe
stopped 143 TERM 0.3 "$m" tune a.moe
stopped 130 INT 0.1 "$m" build a.moe -o built
"$m" build a.moe -o whole 2>err || say "build"
stopped 143 TERM 0.5 ./whole --tokens 512 --iters 1000000 -q --output y.safetensors --stats s.json
(trap '' HUP && exec "$m" run a.moe -q --tokens 4 --iters 100) >out 2>err & # as nohup has it
sleep 0.2
kill -HUP $!
wait $! || say "an ignored signal ended a run"
# No room: files of more than a few blocks are refused in the middle.
for line in "build a.moe -o built" "build a.moe --lib -o built.so" "run a.moe --tokens 512 -q --output y.safetensors" \
    "run a.moe --tokens 16 -q --trace t.json"; do
    (trap '' XFSZ && ulimit -f 4 && "$m" $line) >out 2>err
    [ $? = 3 ] && grep -qE '(built|built\.so|y\.safetensors|t\.json): .*(File too large|cannot write)' err ||
        { cat err; say "no room: $line"; }
    clean "$line"
done
for line in "run a.moe --tokens 4 -q --stats /dev/full" "run a.moe --tokens 4 -q --trace /dev/full" \
    "simulate a.moe --svg /dev/full" "simulate a.moe --trace /dev/full"; do
    "$m" $line >out 2>err
    [ $? = 3 ] && grep -q '/dev/full: ' err || { cat err; say "full device: $line"; }
done
# No right to: somebody else's folder, as nobody where this is root.
as=
[ "$(id -u)" = 0 ] && as="setpriv --reuid=65534 --regid=65534 --clear-groups" && chmod 755 "$folder" && chmod 777 tmp
cp "$m" mine && chmod 755 mine
mkdir shut && chmod 555 shut && touch secret.moe && chmod 000 secret.moe
if $as true 2>/dev/null; then
    for line in "build a.moe -o shut/built" "run a.moe --tokens 4 -q --output shut/y" "run a.moe --tokens 4 -q --stats shut/s" \
        "run a.moe --tokens 4 -q --trace shut/t" "simulate a.moe --svg shut/v" "calibrate --ranks 1 -q -o shut/c"; do
        $as ./mine $line >out 2>err
        [ $? = 3 ] && grep -q 'shut/[a-z]*: .*Permission denied' err || { cat err; say "read-only folder: $line"; }
    done
    $as ./mine check secret.moe 2>err
    [ $? = 3 ] && grep -q 'secret.moe: Permission denied' err || { cat err; say "unreadable source"; }
    $as ./mine fmt secret.moe 2>err
    [ $? = 3 ] && grep -q 'secret.moe: Permission denied' err || { cat err; say "fmt of an unreadable source"; }
    [ -z "$(ls -A shut)" ] || say "something was written where nobody may"
else
    echo "skipped: nobody else to be"
fi
exit $wrong
