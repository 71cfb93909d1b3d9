// What a layer computes or declares in vain: a stage whose result nothing reads, a parameter that no stage takes. The
// layer is right, so these are warnings; but a forgotten merge would otherwise lose the shared expert without a word.
#include "compiler/check/types.h"

/// Does a stage of the layer read this value (or, of a parameter, take it)?
static bool is_read(const struct checker *checker, const struct mod_layer *layer, uint32_t value, uint32_t param)
{
    for (uint32_t i = 0; i < layer->stages.count; i++) {
        const struct mod_stage *stage = ROW(checker->module, mod_stage, layer->stages.first + i);
        for (uint32_t a = 0; a < stage->args.count; a++) {
            const struct mod_arg *arg = ROW(checker->module, mod_arg, stage->args.first + a);
            if ((value != NONE && arg->value == value) || (param != NONE && arg->param == param))
                return true;
        }
    }
    return false;
}

/// Only the last stage of a chain that leads nowhere is told: the others are read.
static void warn_stage(struct checker *checker, const struct mod_stage *stage, node_id yield)
{
    node_id result = node_of(checker, stage->node)->slot[0];
    const char *value = name_text(checker, node_of(checker, result)->text);
    struct diag *diag = diag_warning(checker->context, E0108, place_of(checker, result),
                                     "nothing reads `%s`, the result of stage `%s`", value,
                                     name_text(checker, node_of(checker, stage->node)->text));
    diag_label(checker->context, diag, "no stage takes it, and it is not yielded");
    diag_label_at(checker->context, diag, statement_place(checker, yield), "the layer's result is made without it");
    diag_help(checker->context, diag, "give `%s` to a stage that leads to `yield`, or remove stage `%s`", value,
              name_text(checker, node_of(checker, stage->node)->text));
}

void warn_unused(struct checker *checker, const struct mod_layer *layer, node_id yield)
{
    for (uint32_t i = 0; i < layer->stages.count; i++) {
        const struct mod_stage *stage = ROW(checker->module, mod_stage, layer->stages.first + i);
        if (!stage->external && stage->result != layer->output && !is_read(checker, layer, stage->result, NONE))
            warn_stage(checker, stage, yield); // an extern stage may be there for what it does
    }
    for (uint32_t i = 0; i < layer->params.count; i++) {
        uint32_t row = layer->params.first + i;
        const struct mod_param *param = ROW(checker->module, mod_param, row);
        if (is_read(checker, layer, NONE, row))
            continue;
        struct diag *diag = diag_warning(checker->context, E0108, place_of(checker, param->node),
                                         "no stage takes parameter `%s`", ir_text(checker->module, param->name));
        diag_label(checker->context, diag, "loaded and kept for nothing");
        diag_help(checker->context, diag, "give it to a stage, or remove it");
    }
}
