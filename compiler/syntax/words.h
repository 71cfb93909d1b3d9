// The tables of grammar/words.def: reserved words and units.
#ifndef MOECC_SYNTAX_WORDS_H
#define MOECC_SYNTAX_WORDS_H

#include <stdbool.h>
#include <stddef.h>

enum unit_kind { UNIT_BYTES, UNIT_BYTES_PER_S, UNIT_BITS_PER_S, UNIT_FLOPS, UNIT_TIME, UNIT_RATIO };

struct unit_word {
    const char *text;
    enum unit_kind kind;
    double factor; // to B, B/s (also of bits), FLOPS, s, 1
};

struct reserved_word {
    const char *text;
    int token;
    bool soft; // may be a name
};

extern const struct unit_word unit_table[];
extern const size_t unit_table_count;
extern const struct reserved_word reserved_words[];
extern const size_t reserved_word_count;

/// NULL when there is no such unit.
const struct unit_word *find_unit(const char *text);
const struct reserved_word *find_reserved_word(const char *text, size_t length);

#endif
