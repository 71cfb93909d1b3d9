// The table of roles.def.
#include "roles.h"

#include <string.h>

enum { GENERATED = false, BUILT_IN = true };

#define KINDS(...) ((const uint8_t[]){__VA_ARGS__})
const struct role_spec role_specs[kernel_role_words_count] = {
#define ROLE(role, work, made, crosses, least_, ...) \
    [kernel_role_##role] = {.least = least_, .most = sizeof KINDS(__VA_ARGS__), .args = {__VA_ARGS__}, \
                            .unit = work_unit_##work, .builtin = made, .exchange = crosses},
#define ROW_OPERATOR(role, ...) \
    [kernel_role_##role] = {.least = sizeof KINDS(__VA_ARGS__, ARG_OUT), .most = sizeof KINDS(__VA_ARGS__, ARG_OUT), \
                            .args = {__VA_ARGS__, ARG_OUT}, .unit = work_unit_tokens, .row_operator = true},
#include "roles.def"
#undef ROLE
#undef ROW_OPERATOR
};

uint32_t row_operator(const char *kernel)
{
    uint32_t role = 0;
    while (role < kernel_role_words_count && !(role_specs[role].row_operator && !strcmp(kernel_role_words[role], kernel)))
        role++;
    return role;
}
