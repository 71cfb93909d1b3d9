// The declarations of a schedule: which streams there are, and which stage goes to which stream.
#include <string.h>

#include "compiler/schedule/elaborate.h"

enum { STREAMS_MAX = 64 };

static uint32_t engine_mask(const struct elaboration *e, node_id uses)
{
    uint32_t mask = 0;
    EACH_NODE(e->ast, id, uses)
    {
        for (uint32_t engine = 0; engine < engine_words_count; engine++)
            if (strcmp(engine_words[engine], text_of(e->context, ast_node_of(e, id)->text)) == 0)
                mask |= 1u << engine;
    }
    return mask;
}

/// `copy[k]`: which device will run the schedule is not known here, but none has more engines than the most.
static bool copies_exist(struct elaboration *e, node_id uses)
{
    EACH_NODE(e->ast, id, uses)
    {
        node_id index = ast_node_of(e, id)->slot[0];
        int64_t number = 0;
        if (index && !evaluate_here(e, index, &number))
            return false;
        if (number >= 0 && number < COPY_ENGINES_MAX)
            continue;
        struct diag *diag = elaboration_error(e, E0307, ast_node_of(e, id)->span, "`copy[%lld]` does not exist",
                                              (long long)number);
        diag_label(e->context, diag, "copy engines are numbered from 0 to %d", COPY_ENGINES_MAX - 1);
        return false;
    }
    return true;
}

static bool is_new_stream(struct elaboration *e, node_id id)
{
    const struct ast_node *stream = ast_node_of(e, id);
    for (uint32_t i = 0; i < e->stream_count; i++) {
        if (e->streams[i].name != stream->text)
            continue;
        struct diag *diag = elaboration_error(e, E0102, stream->name_span, "stream `%s` is declared twice",
                                              text_of(e->context, stream->text));
        diag_label_at(e->context, diag, ast_node_of(e, e->streams[i].node)->name_span, "first here");
        return false;
    }
    return true;
}

void declare_stream(struct elaboration *e, node_id id)
{
    const struct ast_node *stream = ast_node_of(e, id);
    int64_t count = 1;
    if (!is_new_stream(e, id) || (stream->slot[0] && !evaluate_here(e, stream->slot[0], &count)))
        return;
    if (count < 1 || count + e->stream_count > STREAMS_MAX) {
        elaboration_error(e, E0206, stream->name_span, "a schedule has 1 to %d streams", STREAMS_MAX);
        return;
    }
    if (!copies_exist(e, stream->slot[1]))
        return;
    uint32_t engines = engine_mask(e, stream->slot[1]);
    const char *name = text_of(e->context, stream->text);
    for (int64_t i = 0; i < count; i++) {
        bool array = stream->slot[0] != 0;
        *APPEND(e, streams, stream_count, stream_capacity) = (struct stream_info){
            .name = stream->text,
            .label = array ? context_printf(e->context, "%s[%lld]", name, (long long)i) : name,
            .index = array ? i : -1,
            .engines = engines,
            .node = id,
        };
    }
}

static int64_t priority_of(const struct elaboration *e, const struct ast_node *value)
{
    const char *word = text_of(e->context, value->text);
    return strcmp(word, "high") == 0 ? 1 : strcmp(word, "low") == 0 ? -1 : 0;
}

static void bind_options(struct elaboration *e, node_id record, struct binding *binding)
{
    if (!record)
        return;
    EACH_NODE(e->ast, id, ast_node_of(e, record)->slot[0])
    {
        const struct ast_node *field = ast_node_of(e, id), *value = ast_node_of(e, field->slot[0]);
        if (strcmp(text_of(e->context, field->text), "priority") == 0)
            binding->priority = priority_of(e, value);
        else if (evaluate_named(e, "sm", field->slot[0], &binding->sms) && (binding->sms < 0 || binding->sms > SM_MAX))
            elaboration_error(e, E0206, value->span, "`sm` is a number of SMs, from 0 to %d", SM_MAX);
    }
}

static void bind_one(struct elaboration *e, node_id path, struct binding binding)
{
    uint32_t stage, task;
    if (!find_stage(e, path, &stage, &task))
        return;
    struct binding *slot = task == NONE ? &e->whole[stage] : &e->tasks[task].bound;
    if (slot->given) {
        struct diag *diag = elaboration_error(e, E0102, ast_node_of(e, path)->span, "`%s` is bound twice",
                                              task == NONE ? e->stages[stage].name : e->tasks[task].label);
        diag_label_at(e->context, diag, ast_node_of(e, slot->path)->span, "first here");
        return;
    }
    e->stages[stage].named = true;
    binding.path = path;
    *slot = binding;
}

void declare_bind(struct elaboration *e, node_id id)
{
    const struct ast_node *bind = ast_node_of(e, id);
    struct binding binding = {.given = true, .stream = NONE, .stream_name = bind->text};
    bool array = false;
    for (uint32_t i = 0; i < e->stream_count && !bind->slot[1]; i++)
        array = array || (e->streams[i].name == bind->text && e->streams[i].index >= 0);
    if (!array)
        binding.stream = find_stream(e, bind->text, bind->slot[1], bind->name_span);
    bind_options(e, bind->slot[2], &binding);
    for (uint32_t i = 0; i < e->stream_count; i++) {
        struct stream_info *stream = &e->streams[i];
        if (i != binding.stream && !(array && stream->name == bind->text))
            continue;
        stream->sms = binding.sms > stream->sms ? binding.sms : stream->sms;
        stream->priority = binding.priority > stream->priority ? binding.priority : stream->priority;
    }
    EACH_NODE(e->ast, path, bind->slot[0])
    {
        bind_one(e, path, binding);
    }
}
