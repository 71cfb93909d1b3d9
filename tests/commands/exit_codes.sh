# Exit codes and streams as promised: 0 fine, 1 wrong input, 2 usage or not built yet, 3 the system.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
wrong=0
. tests/expect.sh
m=build/moecc
expect 0 "fine" $m check examples/hello.moe
expect 0 "fine" $m check examples/olmoe.moe
for file in bidirectional hook_receive expert_waves; do
    expect 0 "fine" $m check examples/schedules/$file.moe
done
expect 0 "fine" $m check examples/mixed_cluster.moe
$m run examples/wire_formats.moe --tokens 64 2>/dev/null |
    grep -q "^dispatch: [0-9]* rows in blocks, loss by relative L2 2.[0-9]* %, by 1 - cosine 0.03[0-9]* %" ||
    { echo "no loss printed"; wrong=1; }
expect 0 "" $m simulate examples/hello.moe
expect 2 "not built yet" $m lsp
for command in check build simulate tune calibrate compare import verify fmt inspect explain; do
    $m $command --help | grep -q "^usage: moecc $command " || { echo "no help for $command"; wrong=1; }
done
expect 2 "as in .-D tokens=10" $m simulate examples/hello.moe --tokens 10
sed 's/target    = cpu;/target = cpu; weights = w(safetensors("nowhere"));/' examples/hello.moe >"$folder/placed.moe"
echo 'weights w for moe { w_router = "r"; w_gate_up = "g"; w_down = "d"; }' >>"$folder/placed.moe"
$m build "$folder/placed.moe" --cpu-level v2 -o "$folder/placed" 2>/dev/null
expect 3 "nowhere" "$folder/placed" --tokens 4
for option in --help --version; do
    expect 3 "standard output: No space left" sh -c "$folder/placed $option >/dev/full"
done
expect 3 "from the working directory; .--weights PATH" "$folder/placed" --tokens 4
expect 2 "unknown command" $m frobnicate
expect 2 "unknown option" $m check --frobnicate examples/hello.moe
for given in "check -o x" "run -o x" "run --lib" "build --json" "tune --schedule serial" "fmt --ranks 2" "inspect --pipeline p" \
    "import -D tokens=8" "explain --emit=ast" "simulate --carrier x" "compare --trace x"; do # what nothing would read
    expect 2 "is no option of .${given%% *}." $m $given examples/hello.moe
done
expect 2 "takes one file" $m check
expect 2 "unknown value .sometimes" $m check --color=sometimes examples/hello.moe
expect 2 "a number from 1 to 1024" $m check --ranks 0 examples/hello.moe
expect 2 "expected N\[,N...\]" $m run examples/hello.moe --tokens many
expect 2 "needs a value" $m check examples/hello.moe --schedule
expect 2 "too many files" $m fmt $(seq 200)
expect 2 "name the result with -o" $m build examples/hello.moe
expect 2 ".fmt. takes files" $m fmt
expect 2 "takes one code" $m explain E0301 E0302
expect 2 "is no code of a diagnostic" $m explain E9999
expect 2 "takes one checkpoint directory" $m import
expect 2 ".calibrate. takes no file" $m calibrate here.moe
expect 3 "nowhere.moe" $m check "$folder/nowhere.moe"
expect 1 "E0001" $m check examples/errors/01_semicolon.moe
expect 1 "rank 2" $m run examples/hello.moe --tokens 5,6,2049,1 -q
expect 1 "2048" $m run examples/hello.moe --tokens 5,6,2049,1 -q
expect 3 "absent" $m run examples/hello.moe --input "$folder/absent.safetensors" -q
expect 1 "E0" $m run examples/hello.moe --ranks 3 --tokens 8
expect 2 "a layer.s number is expected" $m check examples/hello.moe --layer 4294967296
expect 3 "nodir/t.json: cannot write: No such file" $m run examples/hello.moe --tokens 4 -q --trace "$folder/nodir/t.json"
[ -z "$($m check --diagnostics=json examples/hello.moe 2>&1)" ] || wrong=1
$m run examples/hello.moe --version | grep -q '^moecc [0-9]' || wrong=1
$m check --diagnostics=json examples/errors/02_unit.moe 2>"$folder/json"
python3 -c 'import json,sys; [json.loads(l) for l in open(sys.argv[1])]' "$folder/json" 2>/dev/null || command -v python3 >/dev/null || true
$m check --diagnostics=short examples/errors/02_unit.moe 2>&1 | grep -q '^examples/errors/02_unit.moe:8:41: error\[E0002\]: ' || wrong=1
for stage in tokens ast module graph schedule program llvm plan; do # what cannot be written is the system's failure
    expect 3 "cannot write to standard output" sh -c "$m run examples/hello.moe --tokens 4 --emit=$stage >/dev/full"
    expect 3 "cannot write to standard output" sh -c "$m build examples/hello.moe --emit=$stage >&-"
done
for command in --help --version "run --help" explain "explain E0301" "simulate examples/hello.moe"; do
    expect 3 "cannot write to standard output" sh -c "$m $command >/dev/full"
done
[ "$($m run examples/hello.moe --tokens 4 --emit=plan 2>&1 | grep -c -v '^[a-z_]* ')" = 0 ] || wrong=1 # and nothing else
$m run examples/hello.moe --tokens 16 --emit=plan >"$folder/plan" 2>/dev/null && head -n 1 "$folder/plan" | grep -q '^ir plan' || wrong=1
# Every pipeline of a file is checked; a run needs to know which one.
{ cat examples/hello.moe; sed -n '/^pipeline/,$p' examples/hello.moe | sed 's/hello/again/; s/placement = .*/placement = nowhere;/'; } >"$folder/two.moe"
expect 1 "unknown placement .nowhere" $m check "$folder/two.moe"
expect 0 "pipeline hello" $m check --pipeline hello "$folder/two.moe"
expect 1 "several pipelines: hello, again" $m run "$folder/two.moe" --tokens 4
sed -i 's/= nowhere/= two_each/' "$folder/two.moe"
expect 0 "pipelines hello, again" $m check "$folder/two.moe"
# A file is named once.
expect 3 "^moecc: $folder/none.plan: No such file" $m inspect "$folder/none.plan"
expect 1 "^moecc: examples/hello.moe: carries no plan" $m inspect examples/hello.moe
# Files and folders that are not there, or are not what they should be, by name.
echo 'nothing here' >"$folder/none.cu"
echo '// kernel nosuch_0, 128 threads' >"$folder/other.cu"
cuda="$m run examples/hello.moe --target cuda:sm_80,host --tokens 8"
expect 1 "none.cu:1: this belongs to no kernel" $cuda --use-cuda "$folder/none.cu"
expect 1 "other.cu: this pipeline has no kernel .nosuch_0" $cuda --use-cuda "$folder/other.cu"
expect 3 "missing.cu: No such file" $cuda --use-cuda "$folder/missing.cu"
expect 3 "neither MOECC_CACHE nor HOME" env -u HOME -u XDG_CACHE_HOME -u MOECC_CACHE $cuda
expect 3 "/dev/null/x: Not a directory" env MOECC_CACHE=/dev/null/x $cuda
expect 3 "no C++ compiler" env MOECC_CXX=/nonexistent PATH= $cuda
expect 1 "nowhere: No such file" $m import "$folder/nowhere"
expect 1 "nowhere/config.json: No such file" $m import "$folder/nowhere/config.json"
expect 3 "missing.moe: No such file" $m tune "$folder/missing.moe"
expect 1 "none.cu: .*expected near 'nothing'" $m compare "$folder/none.cu" "$folder/none.cu"
expect 3 "/nonexistent/moe-calibrate-.*No such file" env TMPDIR=/nonexistent $m calibrate --ranks 1 -q
mkdir "$folder/layerless"
echo '{"model_type": "olmoe", "num_hidden_layers": 0}' >"$folder/layerless/config.json"
expect 1 "E0602.*num_hidden_layers" $m import "$folder/layerless"
sed -i 's/: 0/: 1000001/' "$folder/layerless/config.json"
expect 1 "E0602.*1000001 layers" $m import "$folder/layerless"
olmoe=tests/data/olmoe-tiny/config.json
expect 1 "E0101.*no cluster .nosuch. in std.hw" $m import $olmoe --cluster nosuch
expect 1 "E0101.*no cluster .nosuch. in examples/hello.moe" $m import $olmoe --cluster examples/hello.moe:nosuch
expect 1 "E0901.*an executable cannot carry the CUDA kernels" $m build examples/hello.moe --target cuda:sm_80,host -o "$folder/x"
for option in --trace --svg; do
    expect 3 "nodir/t: No such file" $m simulate examples/hello.moe $option "$folder/nodir/t"
done
expect 2 "too many .-D" $m check $(seq -f '-D tokens=%g' 1 33) examples/hello.moe
# A file named without its folder still finds what it imports from beside it.
(cd examples/errors && ../../build/moecc check 06_overlap_dep.moe 2>&1 | grep -q 'error\[E0301\]') || wrong=1
exit $wrong
