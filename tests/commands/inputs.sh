# What is given in place of a file: a pipe with a program in it is read whole, a pipe that nobody writes to and a device without
# end are refused where a file is mapped, and where text is read the device is too large.
set -eu
root=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
moecc=$root/build/moecc
mkfifo pipe
mkdir checkpoint
mkfifo checkpoint/model.safetensors

# refused STATUS WORDS COMMAND...: it ends by itself, with that status and those words.
refused() {
    wanted=$1 words=$2
    shift 2
    status=0
    timeout 60 "$@" >answer 2>&1 </dev/null || status=$?
    [ $status = "$wanted" ] && grep -qF "$words" answer || { echo "$*: exit code $status"; cat answer; exit 1; }
}

"$moecc" check "$root/examples/hello.moe" 2>&1 | sed 's/.*fine: pipeline/pipeline/; s/, [0-9]* ms//' >file
for given in /dev/stdin /proc/self/fd/0; do
    cat "$root/examples/hello.moe" | "$moecc" check $given 2>&1 | sed 's/.*fine: pipeline/pipeline/; s/, [0-9]* ms//' >piped
    cmp file piped
done
cat "$root/examples/hello.moe" >pipe &
"$moecc" check pipe 2>&1 | grep -q 'fine: pipeline hello'

for device in /dev/zero; do
    refused 3 "cannot read $device: File too large" "$moecc" check $device
    refused 3 "cannot read $device: File too large" "$moecc" fmt $device
    refused 3 "cannot read $device: File too large" "$moecc" import $device
    ln -s $device "endless.moe"
    echo 'import "endless.moe" as e;' >importing.moe
    refused 1 'cannot read `endless.moe`' "$moecc" check importing.moe
done
for given in pipe /dev/zero; do
    refused 1 "$given: not a plan" "$moecc" inspect $given
    refused 2 "$given: not a regular file" "$moecc" simulate "$root/examples/hello.moe" --load $given
    refused 3 "$given: not a regular file" "$moecc" run "$root/examples/hello.moe" -q --schedule serial --input $given
    refused 3 "$given: not a regular file" "$moecc" run "$root/examples/hello.moe" -q --schedule serial --tokens 8 --weights $given
done
refused 3 "checkpoint/model.safetensors: not a regular file" "$moecc" run "$root/examples/hello.moe" -q --schedule serial --tokens 8 --weights checkpoint
