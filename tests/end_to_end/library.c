// The trial layer on which std.schedules' schedules run (library.h).
#include "tests/end_to_end/library.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Beside the library's: one that sends, computes and answers the rows of each micro-batch piece by piece.
static const char by_rows[] =
    "schedule by_rows for (route, dispatch, expert, combine) {\n"
    "    split tokens into 2 as i; split dispatch into 2 as k; split expert into 3 as t; split combine into 2 as c;\n"
    "    stream comp uses sm; stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
    "    bind route, expert to comp; bind dispatch to tx; bind combine to rx;\n"
    "    for i in 0..2 { route[i]; dispatch[i,0]; dispatch[i,1]; }\n"
    "    for i in 0..2 { expert[i,0]; expert[i,1]; combine[i,0]; expert[i,2]; combine[i,1]; }\n}\n";

void library_read(struct library *l)
{
    char line[256];
    FILE *file = fopen("stdlib/std/schedules.moe", "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    l->count = 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "schedule %47[a-z_]", l->name[l->count]) == 1 && l->count + 1 < LIBRARY_MOST)
            l->waves[l->count++] = false;
        else if (strstr(line, "split experts") && l->count)
            l->waves[l->count - 1] = true;
    }
    fclose(file);
    CU_ASSERT_FATAL(l->count + 1 < LIBRARY_MOST);
    l->waves[l->count] = false;
    snprintf(l->name[l->count++], LIBRARY_NAME, "by_rows");
}

moe_plan *library_compile(const struct library *l, bool serial, const char *options)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    fprintf(out, "import std.ops;\nimport std.hw { laptop };\nimport std.schedules as lib;\n%s"
                 "dim tokens <= 256;\ndim hidden = %d;\ndim ffn = 96;\ndim experts = 16;\n"
                 "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n    param w_router: f32[experts, hidden];\n"
                 "    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n    param w_down: bf16[experts, hidden, ffn];\n"
                 "    param s_gate_up: bf16[1, 2 * ffn, hidden];\n    param s_down: bf16[1, hidden, ffn];\n"
                 "    extern stage attn: a = attention(x, cost: 1ms);\n    stage route: r = topk(a, w_router, k: 3);\n"
                 "    stage dispatch: xd = dispatch(a, r%s);\n    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n"
                 "    stage combine: yr = combine(yd, r);\n    stage shared: ys = swiglu(a, s_gate_up, s_down);\n"
                 "    stage merge: y = add(yr, ys);\n    yield y;\n}\n"
                 "placement four_each on laptop { place experts over rank; }\n"
                 "pipeline main {\n    layer = moe;\n    repeat = 2;\n    cluster = laptop;\n    placement = four_each;\n"
                 "    target = cpu;\n", by_rows, LIBRARY_WIDTH, options);
    for (int n = l->count; n-- > 0 && !serial;)
        fprintf(out, "    use %s%s when tokens >= %d;\n", strcmp(l->name[n], "by_rows") ? "lib." : "", l->name[n],
                LIBRARY_FIRST + n);
    fprintf(out, "    use lib.serial;\n}\n");
    fclose(out);
    moe_plan *plan = subject_compile(&(struct subject){.text = text, .layer = -1});
    free(text);
    return plan;
}

int library_attention(void *user, const moe_extern_call *call)
{
    (void)user;
    const uint16_t *in = call->in[0];
    uint16_t *out = call->out;
    for (int64_t i = 0; i < call->count * LIBRARY_WIDTH; i++)
        out[i] = in[i] & 0x7f80 ? (uint16_t)(in[i] + 0x80) : in[i];
    return 0;
}
