# Traces of a prediction and of a run hold the same stages, and `moecc compare` sets them side by side.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
wrong=0
expect() { # expect CODE TEXT COMMAND...: exit code, and a text on either stream
    code=$1 text=$2
    shift 2
    "$@" >"$folder/out" 2>&1
    got=$?
    if [ $got != "$code" ] || ! grep -q -- "$text" "$folder/out"; then
        echo "expected $code and '$text', got $got from: $*"
        cat "$folder/out"
        wrong=1
    fi
}
m=build/moecc
$m simulate examples/hello.moe --schedule 'ladder(n: 2)' -D tokens=64 --trace "$folder/a.json" >/dev/null || wrong=1
$m run examples/hello.moe --schedule 'ladder(n: 2)' -D tokens=64 -q --emulate-links --trace "$folder/b.json" >/dev/null || wrong=1
expect 0 "^expert  " $m compare "$folder/a.json" "$folder/b.json" -o "$folder/both.json"
for name in route dispatch.pack combine.merge "dispatch.send messages" step "exposed communication"; do
    grep -q "^$name  " "$folder/out" || { echo "no line for $name"; wrong=1; }
done
grep -q '"name":"'"$folder"'/a.json: rank 0' "$folder/both.json" && grep -q '"name":"'"$folder"'/b.json: rank 3' "$folder/both.json" || wrong=1
expect 0 "the same" sh -c "$m compare '$folder/a.json' '$folder/a.json' | awk '/^(expert|step|route) / && \$NF != \"1.000\" {exit 1}' && echo the same"
expect 1 "README.md" $m compare "$folder/both.json" README.md
echo '{"traceEvents": []}' >"$folder/empty.json"
expect 1 "no stages" $m compare "$folder/a.json" "$folder/empty.json"
expect 1 "absent" $m compare "$folder/a.json" "$folder/absent.json"
expect 2 "two traces" $m compare "$folder/a.json"
expect 2 "replace one" $m compare "$folder/a.json" "$folder/b.json" -o "$folder/a.json"
exit $wrong
