# Runs at their edges: ranks without tokens beside uneven ones, fewer and more threads than ranks and cores, with links
# emulated and without: the same bytes. Too little memory, for weights, threads or the compiler; too many threads; a folder
# and a disk that take nothing: an error with its reason, and soon.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
wrong=0
limit="timeout 60"
. tests/expect.sh
m=$PWD/build/moecc
cp examples/hello.moe "$folder"
cd "$folder"
say() { echo "$*"; wrong=1; }
within() { # within KILOBYTES CODE TEXT COMMAND...: in so much memory
    size=$1 expected=$2 words=$3
    shift 3
    expect "$expected" "$words" sh -c "ulimit -v $size && exec $*"
}
"$m" build hello.moe -o hello || say build
for tokens in 0,7,33,1 0,0,0,0; do
    ./hello --tokens $tokens --threads 1 -q --output first || say "1 thread, $tokens"
    for threads in 1 3 5 8; do
        ./hello --tokens $tokens --threads $threads -q --emulate-links --output again || say "$threads threads, $tokens, links"
        cmp first again || wrong=1
    done
done
many="$m run hello.moe --ranks 64 -D experts=64 -D hidden=64 -D ffn=64 --tokens 3 -q"
timeout 60 $many --threads 1 --output first || say "64 ranks on a thread"
timeout 60 $many --threads 200 --emulate-links --output again || say "64 ranks on 200 threads"
cmp first again || wrong=1
expect 2 "5000 threads are more than the 4096" ./hello --threads 5000 --tokens 4
within 100000 3 "out of memory: the session needs [0-9.]* MB for weights, [0-9.]* MB for buffers" ./hello --tokens 8
within 600000 3 "could not start its threads, 256 to compute and 12 for streams: Resource" ./hello --tokens 8 --threads 256
within 2000000 3 "out of memory" "$m" run hello.moe -D hidden=4096 -D ffn=4096 --tokens 8
mkdir shut && cp hello.moe shut && chmod 555 shut
(cd shut && "$m" run hello.moe --tokens 4 -q >/dev/null && ../hello --tokens 4 -q >/dev/null) || say "from a read-only folder"
for option in --output --stats --trace; do
    expect 3 "/dev/full: cannot write: No space" ./hello --tokens 4 $option /dev/full
done
for option in "" --gantt; do
    expect 3 "standard output: No space" sh -c "./hello --tokens 4 $option >/dev/full"
done
exit $wrong
