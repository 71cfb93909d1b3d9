# Threads and memory near each other: on this machine, described as one of two memory nodes, results are the same, and -v
# says who sits where; within what taskset leaves; without libhwloc it says so and goes on.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
wrong=0
m=build/moecc
say() { echo "$*"; wrong=1; }
shows() { # shows TEXT COMMAND...: exit code 0, and that on stderr
    text=$1
    shift
    "$@" >"$folder/out" 2>"$folder/err" || say "failed: $*"
    grep -q -- "$text" "$folder/err" || { cat "$folder/err"; say "no '$text' from: $*"; }
}
run="$m run examples/hello.moe --tokens 7,0,33,1"
unset HWLOC_SYNTHETIC HWLOC_XMLFILE HWLOC_THISSYSTEM
$run -q --output "$folder/plain" || say "a plain run"
for bind in none node core; do
    $run -q --output "$folder/bound" --bind $bind || say "--bind $bind"
    cmp "$folder/plain" "$folder/bound" || wrong=1
    HWLOC_SYNTHETIC="node:2 core:1 pu:1" HWLOC_THISSYSTEM=1 $run -q --output "$folder/bound" --bind $bind || say "$bind, nodes"
    cmp "$folder/plain" "$folder/bound" || wrong=1
done
shows "node 1: processors 2-3 (2 cores), ranks 2 to 3, 2 threads, nothing bound: hwloc describes another machine" \
    env HWLOC_SYNTHETIC="node:2 core:2 pu:1" $run --threads 4 -v
: >"$folder/libhwloc.so.15" # no library
shows "libhwloc.so.15 is not there" env HWLOC_SYNTHETIC="node:2 core:2 pu:1" LD_LIBRARY_PATH="$folder" $run -v
cpu=$(taskset -cp $$ | sed 's/.*[^0-9]\([0-9]*\)$/\1/')
shows "this machine: processor $cpu (1 core), ranks 0 to 3, 1 thread, not bound" taskset -c "$cpu" $run -v
shows "1 core), ranks 0 to 3, 3 threads, each bound to a processor" taskset -c "$cpu" $run -v --threads 3 --bind core
for given in "--bind everywhere" "--bind core --pin"; do
    $run $given 2>"$folder/err"
    [ $? = 2 ] && grep -qE 'expected none, node or core|exclude each other' "$folder/err" || say "taken: $given"
done
exit $wrong
