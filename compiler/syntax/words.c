// The tables of grammar/words.def.
#include "compiler/syntax/words.h"

#include <string.h>

#include "compiler/syntax/parser.h"
#include "moe.tab.h"

const struct unit_word unit_table[] = {
#define UNIT(text, kind, factor) {text, UNIT_##kind, factor},
#include "grammar/words.def"
};
const size_t unit_table_count = sizeof unit_table / sizeof *unit_table;

const struct reserved_word reserved_words[] = {
#define WORD(token, text, soft) {text, TOKEN_##token, soft},
#include "grammar/words.def"
};
const size_t reserved_word_count = sizeof reserved_words / sizeof *reserved_words;

const struct unit_word *find_unit(const char *text)
{
    for (size_t i = 0; i < unit_table_count; i++)
        if (!strcmp(unit_table[i].text, text))
            return &unit_table[i];
    return NULL;
}

const struct reserved_word *find_reserved_word(const char *text, size_t length)
{
    for (size_t i = 0; i < reserved_word_count; i++)
        if (reserved_words[i].text[0] == text[0] && strlen(reserved_words[i].text) == length &&
            !memcmp(reserved_words[i].text, text, length))
            return &reserved_words[i];
    return NULL;
}
