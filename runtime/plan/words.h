// The shared vocabularies of words.def as C enums and name tables.
#ifndef MOE_WORDS_H
#define MOE_WORDS_H

#define WORDS(kind) enum kind {
#define WORD(kind, name) kind##_##name,
#define WORDS_END(kind) kind##_words_count };
#include "words.def"
#undef WORDS
#undef WORD
#undef WORDS_END

#define WORDS(kind) extern const char *const kind##_words[];
#define WORD(kind, name)
#define WORDS_END(kind)
#include "words.def"
#undef WORDS
#undef WORD
#undef WORDS_END

#endif
