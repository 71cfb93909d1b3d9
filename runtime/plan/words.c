// The name tables of words.def.
#include <stddef.h>

#include "words.h"

#define WORDS(kind) const char *const kind##_words[] = {
#define WORD(kind, name) #name,
#define WORDS_END(kind) NULL};
#include "words.def"
