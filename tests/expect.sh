# For tests of commands: expect CODE TEXT COMMAND... runs a command ($limit: something that limits it), which must exit with
# that code and print the text on stderr ("": anything). What it printed stays in $folder/out and $folder/err; sets wrong=1.
expect() {
    code=$1 text=$2
    shift 2
    ${limit:-} "$@" >"$folder/out" 2>"$folder/err"
    got=$?
    if [ $got != "$code" ] || { [ -n "$text" ] && ! grep -q -- "$text" "$folder/err"; }; then
        echo "expected $code and '$text', got $got from: $*"
        cat "$folder/err"
        wrong=1
    fi
}
