# `build --lib`: two libraries are linked into one C program, found beside it under their own names, and run; the headers
# compile whatever the pipelines are called.
set -eu
root=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
compiler=$(command -v cc || command -v gcc)
for name in one moe_plan shm; do
    sed "s/pipeline hello/pipeline $name/" examples/hello.moe >"$folder/$name.moe"
    build/moecc build "$folder/$name.moe" --lib -o "$folder/lib$name.so"
done
cd "$folder"
cat >use.c <<'END'
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include "libmoe_plan.h"
#include "libone.h"
#include "libshm.h"

static int ranks(moe_status status, moe_plan *plan)
{
    moe_plan_info info;
    if (status != MOE_OK)
        return -1;
    moe_plan_describe(plan, &info);
    moe_plan_close(plan);
    return (int)info.ranks;
}

int main(void)
{
    moe_plan *plan = NULL;
    moe_status status = one_open("libone.so", &plan);
    int wrong = ranks(status, plan) != ONE_RANKS;
    status = pipeline_moe_plan_open(NULL, &plan);
    wrong |= ranks(status, plan) != PIPELINE_MOE_PLAN_RANKS;
    status = pipeline_shm_open(NULL, &plan);
    wrong |= ranks(status, plan) != PIPELINE_SHM_RANKS;
    return wrong;
}
END
"$compiler" -Wall -Wextra -Werror -I. -I"$root/runtime" use.c ./libone.so ./libmoe_plan.so -L. -lshm -Wl,-rpath,'$ORIGIN' -o use
env -i ./use
mkdir away
mv libone.so away/ # what is linked is what is loaded: without the library there is no program
status=0
env -i ./use 2>message || status=$?
[ $status != 0 ]
grep -q 'libone.so' message
# Mixed names are honest too: a library built straight into another folder.
"$root/build/moecc" build one.moe --lib -o away/libother-name.1.so
"$compiler" -I. -Iaway -I"$root/runtime" -x c - -x none away/libother-name.1.so -Wl,-rpath,'$ORIGIN/away' -o other <<'END'
#include "libother-name.1.h"
int main(int argc, char **argv)
{
    moe_plan *plan;
    (void)argc, (void)argv;
    return one_open("away/libother-name.1.so", &plan) != MOE_OK;
}
END
env -i ./other
