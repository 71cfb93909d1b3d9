// What a schedule splits, and what the indices of an instance mean: a part of the tokens, a layer of a group, a piece of a
// stage's rows. Indices follow the order of the splits.
#include <string.h>

#include "compiler/schedule/elaborate.h"
#include "runtime/plan/limits.h"

enum { PARTS_MAX = 1024, GROUP_MAX = 64, SHARES_MAX = 4096 };

const struct split_info *find_split(const struct elaboration *e, enum split_kind kind, uint32_t stage)
{
    for (uint32_t i = 0; i < e->split_count; i++)
        if (e->splits[i].kind == kind && (kind != SPLIT_STAGE || e->splits[i].stage == stage))
            return &e->splits[i];
    return NULL;
}

struct span split_span(const struct elaboration *e, const struct split_info *split)
{
    return ast_node_of(e, ast_node_of(e, split->node)->slot[1])->span;
}

/// Does the split give the stage an index?
static bool concerns(const struct elaboration *e, const struct split_info *split, uint32_t stage)
{
    if (split->kind == SPLIT_EXPERTS)
        return e->stages[stage].routed;
    return split->kind != SPLIT_STAGE || split->stage == stage;
}

void label_splits(struct elaboration *e, struct diag *diag, uint32_t stage)
{
    static const char *const makes[] = {[SPLIT_TOKENS] = "microbatches",
                                        [SPLIT_EXPERTS] = "waves",
                                        [SPLIT_LAYERS] = "layers",
                                        [SPLIT_STAGE] = "chunks"};
    for (uint32_t i = 0; i < e->split_count; i++)
        if (concerns(e, &e->splits[i], stage))
            diag_label_at(e->context, diag, split_span(e, &e->splits[i]), "makes %s 0..%lld",
                          makes[e->splits[i].kind], (long long)e->splits[i].count);
}

// ---- declarations -------------------------------------------------------------------------------------------------------

static bool split_what(struct elaboration *e, const struct ast_node *split, struct split_info *info)
{
    const char *what = text_of(e->context, ast_node_of(e, ast_node_of(e, split->slot[0])->slot[0])->text);
    uint32_t task;
    if (strcmp(what, "tokens") == 0)
        info->kind = SPLIT_TOKENS;
    else if (strcmp(what, "layers") == 0)
        info->kind = SPLIT_LAYERS;
    else if (strcmp(what, "experts") == 0)
        info->kind = SPLIT_EXPERTS;
    else {
        info->kind = SPLIT_STAGE;
        return find_stage(e, split->slot[0], &info->stage, &task);
    }
    return true;
}

static bool split_once(struct elaboration *e, node_id id, const struct split_info *info)
{
    static const char *const whats[] = {
        [SPLIT_TOKENS] = "tokens are", [SPLIT_EXPERTS] = "experts are", [SPLIT_LAYERS] = "layers are"};
    const struct split_info *before = find_split(e, info->kind, info->stage);
    if (before) {
        const char *what = info->kind == SPLIT_STAGE
                               ? context_printf(e->context, "`%s` is", e->stages[info->stage].name)
                               : whats[info->kind];
        struct diag *diag = elaboration_error(e, E0102, ast_node_of(e, id)->span, "%s split twice", what);
        diag_label_at(e->context, diag, ast_node_of(e, before->node)->span, "first here");
        return false;
    }
    if (e->item_count || e->order_count) {
        struct diag *diag =
            elaboration_error(e, E0309, ast_node_of(e, id)->span, "`split` stands after an instance");
        diag_help(e->context, diag, "move it to the top of the schedule");
        return false;
    }
    if (e->split_count == SPLITS_MAX)
        elaboration_error(e, E0206, ast_node_of(e, id)->span, "a schedule splits at most %d things", SPLITS_MAX);
    return e->split_count < SPLITS_MAX;
}

static bool split_count(struct elaboration *e, const struct ast_node *split, struct split_info *info)
{
    static const struct {
        const char *what, *into;
        int64_t most;
    } limits[] = {[SPLIT_TOKENS] = {"tokens", "parts", PARTS_MAX},
                  [SPLIT_EXPERTS] = {"experts", "waves", MOE_MAX_WAVES},
                  [SPLIT_LAYERS] = {"layers", "groups", GROUP_MAX},
                  [SPLIT_STAGE] = {"a stage's rows", "chunks", PIECES_MAX}};
    if (!evaluate_here(e, split->slot[1], &info->count))
        return false;
    if (info->count >= 1 && info->count <= limits[info->kind].most)
        return true;
    struct diag *diag = elaboration_error(e, E0206, ast_node_of(e, split->slot[1])->span,
                                          "%s cannot be split into %lld %s", limits[info->kind].what,
                                          (long long)info->count, limits[info->kind].into);
    diag_help(e->context, diag, "from 1 to %lld are possible", (long long)limits[info->kind].most);
    return false;
}

/// `{ ratio: [1, 2, 2, 1] }`: one positive share a part.
static bool read_ratio(struct elaboration *e, node_id list, struct split_info *info)
{
    const struct ast_node *node = ast_node_of(e, list);
    if (node->kind != NODE_LIST) {
        struct diag *diag = elaboration_error(e, E0201, node->span, "`ratio` is a list: one share for each part");
        diag_help(e->context, diag, "as in `ratio: [1, 2, 2, 1]`");
        return false;
    }
    int64_t parts = 0, share;
    EACH_NODE(e->ast, id, node->slot[0])
    {
        uint16_t kind = ast_node_of(e, id)->kind;
        if (kind == NODE_FLOAT || kind == NODE_PERCENT || kind == NODE_QUANTITY) {
            struct diag *diag = elaboration_error(e, E0201, ast_node_of(e, id)->span, "a share of `ratio` is a whole number");
            diag_label(e->context, diag, "expected whole-number shares, as in `[1, 2]`");
            return false;
        }
        if (!evaluate_named(e, "ratio", id, &share))
            return false;
        if (share < 1 || share > SHARES_MAX) {
            struct diag *diag = elaboration_error(e, E0206, ast_node_of(e, id)->span,
                                                  "a share is from 1 to %d, not %lld", SHARES_MAX, (long long)share);
            if (share == 0)
                diag_help(e->context, diag, "a part that gets nothing is no part: split into one less");
            return false;
        }
        if (parts < info->count)
            info->shares[parts + 1] = info->shares[parts] + share;
        parts++;
    }
    if (parts != info->count) {
        struct diag *diag = elaboration_error(e, E0205, node->span, "%lld share%s for %lld parts", (long long)parts,
                                              parts == 1 ? "" : "s", (long long)info->count);
        diag_label(e->context, diag, "one share for each part");
        diag_label_at(e->context, diag, split_span(e, info), "split into %lld", (long long)info->count);
        return false;
    }
    if (info->shares[parts] > SHARES_MAX)
        elaboration_error(e, E0206, node->span, "the shares add up to %lld, at most %d are possible",
                          (long long)info->shares[parts], SHARES_MAX);
    return info->shares[parts] <= SHARES_MAX;
}

int64_t *equal_shares(struct elaboration *e, int64_t count)
{
    int64_t *shares = context_alloc(e->context, ((size_t)count + 1) * sizeof *shares);
    for (int64_t i = 0; i <= count; i++)
        shares[i] = i;
    return shares;
}

/// Layers are taken one by one: each is as large as any other.
static bool refuse_ratio(struct elaboration *e, const struct ast_node *split, node_id ratio)
{
    struct diag *diag = elaboration_error(e, E0313, ast_node_of(e, ratio)->span, "layers cannot be split by a ratio");
    diag_label_at(e->context, diag, ast_node_of(e, split->slot[0])->span, "groups of consecutive layers, one of each index");
    diag_help(e->context, diag, "leave the ratio out; unequal parts are those of tokens, experts or a stage's rows");
    return false;
}

static bool read_shares(struct elaboration *e, const struct ast_node *split, struct split_info *info)
{
    info->shares = equal_shares(e, info->count);
    EACH_NODE(e->ast, id, split->slot[2] ? ast_node_of(e, split->slot[2])->slot[0] : 0)
    {
        if (info->kind == SPLIT_LAYERS)
            return refuse_ratio(e, split, split->slot[2]);
        if (!read_ratio(e, ast_node_of(e, id)->slot[0], info))
            return false;
    }
    return true;
}

/// A step of several groups needs whole groups; a layer that runs alone has the instances of layer 0 only.
static bool split_layers(struct elaboration *e, const struct split_info *info)
{
    e->group = info->count;
    if (e->layers == 0) // checked by itself: one group
        e->layers = info->count;
    if (e->layers == 1)
        e->group = 1;
    if (e->layers % e->group == 0)
        return true;
    struct diag *diag = elaboration_error(e, E0206, split_span(e, info),
                                          "the step's %lld layers are not a multiple of %lld", (long long)e->layers,
                                          (long long)info->count);
    diag_label(e->context, diag, "orders %lld consecutive layers together", (long long)info->count);
    diag_help(e->context, diag, "`repeat` must be divisible by %lld", (long long)info->count);
    return false;
}

/// Rows, or replies, in chunks, and routed rows in pieces: few, as each has its header or cut in every slot.
static bool may_chunk(struct elaboration *e, struct span span, uint32_t stage, int64_t count)
{
    if (count <= MOE_MAX_CHUNKS)
        return true;
    struct diag *diag = elaboration_error(e, E0206, span, "`%s` cannot be split into %lld %s", e->stages[stage].name,
                                          (long long)count, e->stages[stage].expert ? "pieces" : "chunks");
    diag_help(e->context, diag, "from 1 to %d are possible", MOE_MAX_CHUNKS);
    return false;
}

static void split_experts(struct elaboration *e, const struct split_info *info)
{
    e->waves = info->count;
    e->wave_shares = info->shares;
    for (uint32_t s = 0; s < e->stage_count; s++)
        if (e->stages[s].routed)
            e->stages[s].pieces = e->waves * e->stages[s].runs;
}

static void split_rows(struct elaboration *e, uint32_t number, int64_t *shares, int64_t runs, node_id cut)
{
    struct stage_info *stage = &e->stages[number];
    stage->runs = runs;
    stage->shares = shares;
    stage->pieces = runs * (stage->routed ? e->waves : 1);
    stage->cut = cut;
}

/// `span`: of the statement; `number`: of the count.
static bool may_cut(struct elaboration *e, struct span span, struct span number, uint32_t stage, int64_t count)
{
    if (e->stages[stage].row_wise)
        return true;
    const char *name = e->stages[stage].name;
    bool alone = e->stages[stage].task_count == 1;
    if (e->stages[stage].expert && alone)
        return may_chunk(e, number, stage, count);
    if (e->stages[stage].expert) {
        struct diag *diag = elaboration_error(e, E0901, span, "the rows of `%s` in pieces, with its phases apart, are not built yet", name);
        diag_note(e->context, diag, "the schedule names `%s.up` or `%s.down`", name, name);
        diag_help(e->context, diag, "issue `%s` whole, or split the tokens", name);
        return false;
    }
    if (e->stages[stage].external) {
        struct diag *diag = elaboration_error(e, E0313, span, "`%s` is given all rows of a part at once", name);
        diag_note(e->context, diag, "an `extern stage` is a function of its own: a row may depend on the others, as in attention");
        diag_help(e->context, diag, "split the tokens");
        return false;
    }
    struct diag *diag =
        elaboration_error(e, E0901, span, "the rows of `%s` in pieces are not built yet", name);
    diag_help(e->context, diag, alone ? "routers, experts on plain rows and `add` can be cut; routed rows are split by tokens"
                                      : "split the tokens: each part sends its own messages");
    return false;
}

void declare_split(struct elaboration *e, node_id id)
{
    const struct ast_node *split = ast_node_of(e, id);
    struct split_info info = {.node = id, .stage = NONE};
    if (!split_what(e, split, &info) || !split_once(e, id, &info) || !split_count(e, split, &info))
        return;
    if (!read_shares(e, split, &info))
        return;
    if (info.kind == SPLIT_TOKENS) {
        e->parts = info.count;
        e->shares = info.shares;
    }
    if (info.kind == SPLIT_LAYERS && !split_layers(e, &info))
        return;
    if (info.kind == SPLIT_EXPERTS)
        split_experts(e, &info);
    if (info.kind == SPLIT_STAGE) {
        struct span number = split_span(e, &info);
        if (e->stages[info.stage].chunked ? !may_chunk(e, number, info.stage, info.count)
                                          : !may_cut(e, split->span, number, info.stage, info.count))
            return;
        split_rows(e, info.stage, info.shares, info.count, id);
    }
    e->splits[e->split_count++] = info;
}

static bool is_split(const struct elaboration *e, node_id cut)
{
    return cut && ast_node_of(e, cut)->kind == NODE_SPLIT;
}

bool cut_stage(struct elaboration *e, node_id fill, node_id record, uint32_t stage)
{
    struct stage_info *info = &e->stages[stage];
    int64_t pieces = 1;
    node_id value = 0;
    EACH_NODE(e->ast, id, record ? ast_node_of(e, record)->slot[0] : 0)
    {
        value = ast_node_of(e, id)->slot[0];
        if (!evaluate_named(e, "pieces", value, &pieces))
            return false;
    }
    struct span place = ast_node_of(e, value ? value : fill)->span;
    if (pieces < 1 || pieces > PIECES_MAX) {
        elaboration_error(e, E0206, place, "from 1 to %d pieces, not %lld", PIECES_MAX, (long long)pieces);
        return false;
    }
    if (pieces > 1 && !may_cut(e, place, place, stage, pieces))
        return false;
    if (is_split(e, info->cut) ? pieces == 1 : !info->cut || info->runs == pieces) {
        if (!is_split(e, info->cut))
            split_rows(e, stage, equal_shares(e, pieces), pieces, fill);
        return true;
    }
    struct diag *diag = elaboration_error(e, E0206, place, "`%s` is cut into %lld pieces elsewhere", info->name,
                                          (long long)info->runs);
    diag_label(e->context, diag, "%lld pieces here", (long long)pieces);
    diag_label_at(e->context, diag, ast_node_of(e, info->cut)->span, "cut here");
    diag_help(e->context, diag, "one stage has one number of pieces, for all of its instances");
    return false;
}

// ---- indices ------------------------------------------------------------------------------------------------------------

static uint32_t index_count(const struct elaboration *e, uint32_t stage)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < e->split_count; i++)
        count += concerns(e, &e->splits[i], stage);
    return count;
}

const char *index_names(const struct elaboration *e, uint32_t stage)
{
    const char *list = "";
    for (uint32_t i = 0; i < e->split_count; i++)
        if (concerns(e, &e->splits[i], stage))
            list = context_printf(e->context, "%s%s%s", list, *list ? ", " : "",
                                  text_of(e->context, ast_node_of(e, e->splits[i].node)->text));
    return list;
}

/// Too few or too many indices.
static bool wrong_count(struct elaboration *e, const struct ast_node *instance, uint32_t stage, uint32_t wanted)
{
    const struct ast_node *path = ast_node_of(e, instance->slot[0]);
    const struct span *span = &path->span;
    const char *text = context_printf(e->context, "%.*s", (int)(span->end - span->begin),
                                      e->context->files[span->file].text + span->begin);
    if (!wanted) {
        const char *why = e->waves > 1 ? "it handles no routed rows, so waves of experts do not split it"
                                       : "nothing is split";
        struct diag *diag = elaboration_error(e, E0307, instance->span, "`%s` has an index, but %s", text, why);
        diag_help(e->context, diag,
                  e->waves > 1 ? "write `%s`, which serves all waves, or split the tokens too"
                               : "write `%s`, or split the tokens: `split tokens into n as i;`",
                  text);
        return false;
    }
    struct diag *diag = wanted == 1
                            ? elaboration_error(e, E0307, instance->span, "`%s` needs one index", text)
                            : elaboration_error(e, E0307, instance->span, "`%s` needs %u indices", text, wanted);
    label_splits(e, diag, stage);
    diag_help(e->context, diag, "write `%s[%s]`", text, index_names(e, stage));
    return false;
}

static bool out_of_range(struct elaboration *e, const struct ast_node *instance, uint32_t stage)
{
    const char *text = text_of(e->context, ast_node_of(e, ast_node_of(e, instance->slot[0])->slot[0])->text);
    const char *list = "";
    int64_t value;
    EACH_NODE(e->ast, index, instance->slot[1])
    {
        if (evaluate_here(e, index, &value))
            list = context_printf(e->context, "%s%s%lld", list, *list ? "," : "", (long long)value);
    }
    node_id loop = loop_around(e, instance->span);
    e->failed = true;
    if (loop && !first_complaint(e, E0307, loop, list))
        return false;
    struct diag *diag = elaboration_error(e, E0307, instance->span, "`%s[%s]` does not exist", text, list);
    diag_label(e->context, diag, "index out of range");
    label_splits(e, diag, stage);
    return false;
}

/// In a pipelined loop: does the index lie outside the loop's range? Only indices that move with the loop are asked.
static bool vanishes(struct elaboration *e, node_id index, int64_t value)
{
    int64_t next, current;
    if (!e->pipelined || (value >= e->low && value < e->high))
        return false;
    if (!evaluate_with(e, e->pipelined, 0, index, &current) || !evaluate_with(e, e->pipelined, 1, index, &next))
        return false;
    return next != current;
}

bool instance_point(struct elaboration *e, node_id id, uint32_t stage, struct point *at)
{
    const struct ast_node *instance = ast_node_of(e, id);
    uint32_t wanted = index_count(e, stage), given = 0;
    EACH_NODE(e->ast, index, instance->slot[1])
    {
        given++;
    }
    *at = (struct point){.piece = ALL_PIECES};
    if (given != wanted)
        return wrong_count(e, instance, stage, wanted);
    node_id index = instance->slot[1];
    int64_t wave = 0, run = 0;
    bool here = true;
    for (uint32_t i = 0; i < e->split_count; i++) {
        const struct split_info *split = &e->splits[i];
        int64_t value;
        if (!concerns(e, split, stage))
            continue;
        if (!evaluate_here(e, index, &value))
            return false;
        if (vanishes(e, index, value))
            return false;
        if (value < 0 || value >= split->count)
            return out_of_range(e, instance, stage);
        *(split->kind == SPLIT_TOKENS    ? &at->part
          : split->kind == SPLIT_LAYERS  ? &at->layer
          : split->kind == SPLIT_EXPERTS ? &wave
                                         : &run) = value;
        if (split->kind == SPLIT_EXPERTS || split->kind == SPLIT_STAGE)
            at->piece = wave * e->stages[stage].runs + run;
        here = here && (split->kind != SPLIT_LAYERS || value < e->group);
        index = ast_node_of(e, index)->next;
    }
    return here;
}

// ---- labels -------------------------------------------------------------------------------------------------------------

const char *index_text(const struct elaboration *e, uint32_t stage, struct point at)
{
    const char *list = "";
    for (uint32_t i = 0; i < e->split_count; i++) {
        const struct split_info *split = &e->splits[i];
        if (!concerns(e, split, stage))
            continue;
        int64_t value = split->kind == SPLIT_TOKENS    ? at.part
                        : split->kind == SPLIT_LAYERS  ? at.layer
                        : split->kind == SPLIT_EXPERTS ? at.piece / e->stages[stage].runs
                                                       : at.piece % e->stages[stage].runs;
        list = context_printf(e->context, "%s%s%lld", list, *list ? "," : "[", (long long)value);
    }
    if (*list)
        list = context_printf(e->context, "%s]", list);
    const struct stage_info *info = &e->stages[stage];
    if (info->runs > 1 && at.piece != ALL_PIECES && !is_split(e, info->cut))
        list = context_printf(e->context, "%s.%lld", list, (long long)at.piece);
    return list;
}

const char *instance_label(const struct elaboration *e, uint32_t stage, uint32_t task, struct point at)
{
    const char *name = task == NONE ? e->stages[stage].name : e->tasks[task].label;
    return context_printf(e->context, "%s%s", name, index_text(e, stage, at));
}
