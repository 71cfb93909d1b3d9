// Pages about diagnostics lie embedded under "explain/CODE.md"; see explain.h.
#include "compiler/explain/explain.h"

#include <ctype.h>
#include <string.h>

const char *explain_page(const char *code, size_t *size)
{
    char path[32] = "explain/";
    size_t length = strlen(path);
    for (const char *c = code; *c && length < sizeof path - 4; c++)
        path[length++] = (char)toupper((unsigned char)*c);
    memcpy(path + length, ".md", 4);
    return embedded_file(path, size);
}

void explain_list(FILE *out)
{
    for (int code = 0; code < diag_code_count; code++)
        fprintf(out, "%s  %s\n", diag_code_name((enum diag_code)code), diag_code_title((enum diag_code)code));
}
