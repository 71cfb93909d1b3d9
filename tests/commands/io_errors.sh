# Files and folders that are not what they should be, or take nothing, met where commands are less often: each is named,
# exit code 3, or 1 where the user gave the wrong file.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
wrong=0
limit="timeout 60"
. tests/expect.sh
m=$PWD/build/moecc
hello=$PWD/examples/hello.moe
cd "$folder"
: >x.safetensors
expect 1 "x.safetensors holds tensors: import reads their directory" "$m" import x.safetensors
mkdir model && cp "$OLDPWD/tests/data/olmoe-tiny/config.json" model && mkdir model/model.safetensors
expect 3 "model.safetensors: not a regular file" "$m" import model
expect 3 "model.safetensors: not a regular file" "$m" run "$OLDPWD/tests/end_to_end/olmoe-tiny.moe" --weights model --tokens 1 -q
expect 1 "model: not a plan" "$m" inspect model
echo 'import "model" as m;' | cat - "$hello" >folder.moe
expect 1 "model" "$m" check folder.moe
"$m" simulate "$hello" --trace a.json >out && cp a.json b.json
expect 3 "cannot write nodir/c.json: No such file" "$m" compare a.json b.json -o nodir/c.json
expect 3 "cannot write /dev/full: No space" "$m" compare a.json b.json -o /dev/full
expect 3 "/dev/full: No space" "$m" calibrate --ranks 2 -q -o /dev/full
expect 3 "the layer to measure could not be compiled" sh -c "trap '' XFSZ; ulimit -f 1; exec $m calibrate --ranks 2 -q"
exit $wrong
