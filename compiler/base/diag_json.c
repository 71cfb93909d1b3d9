// A diagnostic as one JSON object on one line, for editors and scripts. Offsets are bytes; lines and columns count from 1.
#include "compiler/base/diag_record.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/// A JSON string of any bytes: what is not UTF-8 becomes U+FFFD.
static json_t *json_text(const char *text)
{
    char *clean = NULL;
    size_t size = 0, length = strlen(text);
    FILE *out = open_memstream(&clean, &size);
    if (!out)
        return json_null();
    for (size_t i = 0; i < length;) {
        uint32_t bytes = utf8_length(text + i, length - i);
        if (bytes)
            fwrite(text + i, 1, bytes, out);
        else
            fputs("\xEF\xBF\xBD", out);
        i += bytes ? bytes : 1;
    }
    fclose(out);
    json_t *result = json_stringn(clean, size);
    free(clean);
    return result;
}

static void set_place(const struct context *context, json_t *object, struct span span)
{
    const struct source_file *file = diag_file(context, span);
    if (!file)
        return;
    uint32_t line, column, end_line, end_column;
    line_column(file, span.begin, &line, &column);
    line_column(file, span.end, &end_line, &end_column);
    json_object_set_new(object, "file", json_text(file->path));
    json_object_set_new(object, "line", json_integer(line));
    json_object_set_new(object, "col", json_integer(column));
    json_object_set_new(object, "end_line", json_integer(end_line));
    json_object_set_new(object, "end_col", json_integer(end_column));
    json_object_set_new(object, "byte_start", json_integer(span.begin));
    json_object_set_new(object, "byte_end", json_integer(span.end));
}

static json_t *place_list(const struct context *context, const struct diag_place *first, const char *text_key)
{
    json_t *list = json_array();
    for (const struct diag_place *place = first; place; place = place->next) {
        json_t *object = json_object();
        json_object_set_new(object, text_key, place->text ? json_text(place->text) : json_null());
        if (place->primary)
            json_object_set_new(object, "primary", json_true());
        set_place(context, object, place->span);
        json_array_append_new(list, object);
    }
    return list;
}

static json_t *fix_of(const struct context *context, const struct diag *diag)
{
    if (!diag->help && !diag->fixes)
        return json_null();
    json_t *fix = json_object();
    json_object_set_new(fix, "help", diag->help ? json_text(diag->help) : json_null());
    json_object_set_new(fix, "edits", place_list(context, diag->fixes, "text"));
    return fix;
}

void diag_print_json(const struct context *context, const struct diag *diag, FILE *out)
{
    json_t *object = json_object();
    json_object_set_new(object, "code", json_string(diag_code_name(diag->code)));
    json_object_set_new(object, "level", json_string(diag_level_name(diag->level)));
    json_object_set_new(object, "message", json_text(diag->message));
    set_place(context, object, diag->primary.span);
    struct diag_place primary = diag->primary;
    primary.next = diag->labels;
    bool labelled = primary.text && diag_file(context, primary.span);
    json_object_set_new(object, "labels", place_list(context, labelled ? &primary : diag->labels, "message"));
    json_t *notes = json_array();
    for (const struct diag_place *note = diag->notes; note; note = note->next)
        json_array_append_new(notes, json_text(note->text));
    json_object_set_new(object, "notes", notes);
    json_object_set_new(object, "fix", fix_of(context, diag));
    json_dumpf(object, out, JSON_COMPACT);
    fputc('\n', out);
    json_decref(object);
}
