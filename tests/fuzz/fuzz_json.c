// Any text as a JSON file that a `.moe` file imports and takes constants from.
#include "tests/fuzz/fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char program[] = "import \"fuzz.json\" as hf;\ndim hidden = hf.hidden_size;\nconst a = hf.a.b;\n"
                                  "const name = hf.model_type;\nconst scale = hf.scale;\nconst yes = hf.yes;\n"
                                  "const one = hf.list[0]; const deep = hf.list[0].deep[2].x; const far = hf.list[3];\n"
                                  "const wrong = hf.a[0]; const no = hf[0].x; const two = hf.list[0, 1];\n"
                                  "const where = hf.list[hf.scale]; const name_of = yes[0]; const sum = (1 + 2)[0];\n";
    fuzz_file("fuzz.json", data, size);
    fuzz_check(fuzz_file("fuzz.moe", program, strlen(program)));
    return 0;
}
