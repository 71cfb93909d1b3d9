// Attributes (`sm = 132;`) and record fields (`latency: 2us`) read by a table: their kinds, which are required, unknown ones
// with a suggestion. Also the choice of a word from a closed vocabulary.
#include "compiler/check/check.h"

#include <string.h>

static bool is_attribute(const struct ast_node *node)
{
    return node->kind == NODE_ATTR || node->kind == NODE_FIELD;
}

node_id find_attribute(const struct checker *checker, node_id list, const char *name)
{
    EACH_NODE(&checker->program->ast, id, list)
        if (is_attribute(node_of(checker, id)) && !strcmp(name_text(checker, node_of(checker, id)->text), name))
            return id;
    return 0;
}

static void report_attribute(struct checker *checker, node_id id, const char *const *names, uint32_t count,
                             const char *owner)
{
    const char *name = name_text(checker, node_of(checker, id)->text);
    struct diag *diag =
        diag_error(checker->context, E0106, name_place(checker, id), "%s has no attribute `%s`", owner, name);
    diag_label(checker->context, diag, "unknown attribute");
    struct names candidates = {0};
    for (uint32_t i = 0; i < count; i++)
        names_add(checker, &candidates, names[i]);
    if (count)
        diag_note(checker->context, diag, "it takes %s", names_join(checker, &candidates));
    if (!strcmp(name, "schedule"))
        diag_help(checker->context, diag, "a schedule is taken by `use`");
    else
        suggest(checker, diag, "attribute", name, name_place(checker, id), &candidates);
}

bool check_attributes(struct checker *checker, node_id list, const char *const *names, uint32_t count,
                      const char *owner)
{
    bool fine = true;
    EACH_NODE(&checker->program->ast, id, list) {
        if (!is_attribute(node_of(checker, id)))
            continue;
        const char *name = name_text(checker, node_of(checker, id)->text);
        bool known = false;
        for (uint32_t i = 0; i < count && !known; i++)
            known = !strcmp(names[i], name);
        node_id first = find_attribute(checker, list, name);
        if (!known)
            report_attribute(checker, id, names, count, owner);
        else if (first != id)
            report_twice(checker, "attribute", name, name_place(checker, id), name_place(checker, first));
        fine = fine && known && first == id;
    }
    return fine;
}

bool expect_quantity(struct checker *checker, const char *name, node_id expression, double value, bool zero, double most)
{
    if ((zero ? value >= 0 : value > 0) && value <= most)
        return true;
    bool low = !(value > 0);
    struct diag *diag = diag_error(checker->context, E0206, place_of(checker, expression), "`%s` %s", name,
                                   !low   ? "is out of range"
                                   : zero ? "is negative"
                                          : "is not above 0");
    if (low)
        diag_label(checker->context, diag, "expected %s", zero ? "0 or more" : "more than 0");
    else
        diag_label(checker->context, diag, "no machine is like that");
    return false;
}

bool read_attributes(struct checker *checker, uint32_t file, node_id list, const struct attribute *table,
                     uint32_t count, struct span owner, const char *owner_name, struct attribute_value *values)
{
    enum { MOST = 16 };
    const char *names[MOST] = {0};
    struct scope scope = {.file = file};
    for (uint32_t i = 0; i < count && i < MOST; i++)
        names[i] = table[i].name;
    bool fine = check_attributes(checker, list, names, count, owner_name);
    for (uint32_t i = 0; i < count; i++) {
        node_id id = find_attribute(checker, list, table[i].name);
        values[i] = (struct attribute_value){.node = id};
        if (!id && table[i].required) {
            struct diag *diag = diag_error(checker->context, E0107, owner, "%s lacks `%s`", owner_name, table[i].name);
            diag_label(checker->context, diag, "`%s`, %s, is required", table[i].name, kind_phrase(table[i].kind));
            fine = false;
        }
        if (id)
            fine = evaluate_as(checker, &scope, table[i].name, node_of(checker, id)->slot[0], table[i].kind,
                               &values[i].value) &&
                   fine;
    }
    return fine;
}

int choose(struct checker *checker, const char *name, node_id expression, const char *const *words, uint32_t count)
{
    struct span span = place_of(checker, expression);
    const struct ast_node *node = node_of(checker, expression);
    const char *word = node->kind == NODE_NAME || node->kind == NODE_STRING ? name_text(checker, node->text) : NULL;
    struct names candidates = {0};
    for (uint32_t i = 0; i < count; i++) {
        if (word && !strcmp(word, words[i]))
            return (int)i;
        names_add(checker, &candidates, words[i]);
    }
    struct diag *diag =
        diag_error(checker->context, E0208, span, "`%s` cannot be `%s`", name, source_text(checker, span));
    diag_label(checker->context, diag, "unknown choice");
    diag_note(checker->context, diag, "it is one of %s", names_join(checker, &candidates));
    if (word)
        suggest(checker, diag, "choice", word, span, &candidates);
    return -1;
}
