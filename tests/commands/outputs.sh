# What commands write: never over what it was made from, never in place of a device or a link, with the mode there was.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
wrong=0
m=$PWD/build/moecc
say() { echo "$*"; wrong=1; }
cp examples/hello.moe "$folder/a.moe"
cd "$folder"
refused() { # refused COMMAND...: exit code 2
    "$@" >out 2>err
    [ $? = 2 ] || { cat err; say "not refused: $*"; }
}
refused "$m" build a.moe -o a.moe
ln -s a.moe alias.moe
refused "$m" build a.moe -o alias.moe
refused "$m" build a.moe -o ./../"${folder##*/}"/a.moe
cp a.moe b.h
refused "$m" build b.h --lib -o b.so
refused "$m" build a.moe --lib -o x.h
refused "$m" build a.moe --lib -o ./x.h
[ ! -e x.h ] || say "x.h appeared"
printf 'import "sizes.json" as c;\n' | cat - a.moe >c.moe
echo '{"a": 1}' >sizes.json
refused "$m" build c.moe -o sizes.json
cmp -s a.moe "$OLDPWD/examples/hello.moe" || say "a source changed"
[ "$(cat sizes.json)" = '{"a": 1}' ] || say "sizes.json changed"
refused "$m" run a.moe --output same --stats ./same
refused "$m" run a.moe --stats t.json --trace t.json
refused "$m" simulate a.moe --trace t.json --svg ./t.json
for option in --output --stats --trace; do
    refused "$m" run c.moe --tokens 1 $option ./c.moe
    refused "$m" run c.moe --tokens 1 $option sizes.json
done
refused "$m" simulate c.moe --trace ./c.moe --svg t.svg
refused "$m" simulate c.moe --trace t.json --svg c.moe
printf 'import "sizes.json" as c;\n' | cat - a.moe | cmp -s - c.moe || say "c.moe changed"
[ "$(cat sizes.json)" = '{"a": 1}' ] || say "sizes.json changed"
# Devices: /dev/full's numbers, in this folder. Without the right to make one there is nothing to test.
if mknod full c 1 7 2>/dev/null && mknod null c 1 3 && (: >null) 2>/dev/null; then
    "$m" build a.moe -o full >out 2>err
    [ $? = 3 ] || say "build into a full device: not 3"
    "$m" build a.moe -o null || say "build into a null device"
    [ -c full ] && [ -c null ] || say "a device was replaced"
fi
mkfifo pipe
"$m" build a.moe -o pipe & # a pipe gets the bytes
cat pipe >piped
wait $! || say "build into a pipe"
"$m" build a.moe -o built || say "build"
cmp -s built piped || say "the pipe got other bytes"
[ -x built ] || say "the executable is none"
# The share of the cluster's peak, as its devices state it.
"$m" run a.moe --tokens 64 --iters 1 --stats stats.json -q || say "run --stats"
grep -q '"mfu": *[0-9.e-]*[1-9]' stats.json || say "no mfu in --stats"
grep -q '"beside_experts": *0\.[0-9]*[1-9]' stats.json || say "no beside_experts in --stats"
# Links stay, the files behind them change, modes are kept.
mkdir bin
echo old >bin/real
chmod 640 bin/real
ln -s bin/real link
"$m" build a.moe -o link || say "build through a link"
[ -L link ] && cmp -s built bin/real || say "the link was replaced"
[ "$(stat -c %a bin/real)" = 750 ] || say "mode $(stat -c %a bin/real) after 640"
ln -s nothing dangling
"$m" build a.moe -o dangling 2>err && say "a link to nothing was written to"
for mode in 640 755 600; do
    sed 's/dim hidden /dim    hidden /' a.moe >bin/text.moe
    chmod $mode bin/text.moe
    ln -sf bin/text.moe text
    "$m" fmt text || say "fmt"
    [ -L text ] && cmp -s bin/text.moe a.moe || say "fmt replaced a link"
    [ "$(stat -c %a bin/text.moe)" = $mode ] || say "fmt: mode $(stat -c %a bin/text.moe) after $mode"
    "$m" run a.moe --tokens 8 --output text -q || say "run --output"
    [ -L text ] && [ "$(stat -c %a bin/text.moe)" = $mode ] || say "--output: link or mode"
done
[ -z "$(ls -A | grep '\.tmp$')$(ls -A bin | grep '\.tmp$')" ] || say "temporary files are left"
exit $wrong
