// route: the router's scores, the k best experts of each token and their weights.
//
//   a block takes TOKENS tokens                                              a warp takes TOKENS / 4 of them
//   x [TOKENS][K_STEP] ---.  shared memory, f32
//                          >---- fma, k ascending ----> scores [TOKENS][EXPERTS] --.   softmax, sigmoid, ...
//   W [EXPERT_TILE][K_STEP]'  a lane an expert in 32,                               '-> keys [TOKENS][EXPERTS]
//                             a warp a token in 4                                         | groups drop out
//                                                                       CHOICES times:    v
//                                            the best key of the warp, lowest id first; taken out; its score kept
//                                                                                         |
//                                                          divided by the sum, scaled  <--'  ids, weights
//
// A score is one chain of multiply-adds over k, as on the CPU. Keys are the bits of a score (plus selection bias), ordered
// as integers: the choice is exact, equal scores go to the lower id, NaN ranks below everything.
//
// Constants from the compiler: HIDDEN, EXPERTS, CHOICES, SCORE, NORMALIZE, SOURCE (x), GROUPS, GROUPS_KEPT, GROUP_SCORE,
// BIASES, SCALE, BIAS_NUMBER, LOGIT_BIAS_NUMBER, TEMPERATURE (of cosine scores), NOISE (a factor; 0: none), SEED; THREADS,
// TOKENS, EXPERT_TILE, SHARED_BYTES.
#include "noise.h"

constexpr int WARPS = THREADS / gpu::WARP, OWN = TOKENS / WARPS;
constexpr int EACH = EXPERT_TILE / gpu::WARP;
constexpr int K_STEP = 32, STRIDE = K_STEP + 4; // floats; rows 16 bytes apart in their bank
constexpr int GROUP_SIZE = EXPERTS / GROUPS;
constexpr int KEY_TAKEN = INT32_MIN, KEY_NAN = INT32_MIN + 1;
constexpr bool HAS_BIAS = (BIASES & ROUTE_HAS_BIAS) != 0, HAS_LOGIT_BIAS = (BIASES & ROUTE_HAS_LOGIT_BIAS) != 0;

/// The block's shared memory; the product's tiles and a token's keys are never needed at the same time as each other's.
struct Memory {
    float scores[TOKENS][EXPERTS];
    int keys[TOKENS][EXPERTS];
    float chosen[WARPS][CHOICES];
    int group_keys[WARPS][GROUPS];
    alignas(16) float x[TOKENS][STRIDE];
    alignas(16) float w[EXPERT_TILE][STRIDE];
};
static_assert(sizeof(Memory) <= SHARED_BYTES, "the compiler counts the same memory");

/// The least number that the sum of chosen scores, ERNIE's way, or a vector's length is taken for; NaN stays.
constexpr float LEAST_SUM = 1e-12f;

GPU_INLINE int key_of(float score)
{
    const int bits = (int)gpu::bits(score + 0.0f); // -0 becomes 0
    return score != score ? KEY_NAN : bits ^ ((bits >> 31) & INT32_MAX);
}

GPU_INLINE float score_of(int key)
{
    return gpu::number((uint32_t)(key ^ ((key >> 31) & INT32_MAX)));
}

// ------------------------------------------------------------------------------------------------------ over a warp

GPU_INLINE float warp_sum(float value)
{
    GPU_UNROLL for (int mask = gpu::WARP / 2; mask > 0; mask /= 2) value += gpu::shuffle_xor(value, mask);
    return value;
}

GPU_INLINE float warp_maximum(float value)
{
    GPU_UNROLL for (int mask = gpu::WARP / 2; mask > 0; mask /= 2)
    {
        const float other = gpu::shuffle_xor(value, mask);
        value = other > value ? other : value;
    }
    return value;
}

/// Calls body(i) for a lane's own elements of [0, count).
template <class Body> GPU_INLINE void each_own(int count, Body body)
{
    for (int i = gpu::lane(); i < count; i += gpu::WARP)
        body(i);
}

/// The index of the largest key, the lowest of them; it is taken out. Every lane changes its own keys alone.
GPU_INLINE int take_best(int *keys, int count)
{
    int best = KEY_TAKEN, id = INT32_MAX;
    each_own(count, [&](int i) {
        if (keys[i] > best || (keys[i] == best && i < id)) {
            best = keys[i];
            id = i;
        }
    });
    GPU_UNROLL for (int mask = gpu::WARP / 2; mask > 0; mask /= 2)
    {
        const int key = gpu::shuffle_xor(best, mask), other = gpu::shuffle_xor(id, mask);
        if (key > best || (key == best && other < id)) {
            best = key;
            id = other;
        }
    }
    if (id % gpu::WARP == gpu::lane())
        keys[id] = KEY_TAKEN;
    return id;
}

/// values = e^(values - their maximum); returns the sum.
GPU_INLINE float exponentials(float *values, int count)
{
    float most = gpu::number(0xff800000u), sum = 0; // minus infinity
    each_own(count, [&](int i) { most = values[i] > most ? values[i] : most; });
    most = warp_maximum(most);
    each_own(count, [&](int i) {
        values[i] = exponential(values[i] - most);
        sum += values[i];
    });
    return warp_sum(sum);
}

// ------------------------------------------------------------------------------------------------------- the product

/// Eight elements a thread at a time: k [k, k + width) of `rows` rows into shared memory, in f32.
template <int DTYPE> GPU_INLINE void fetch(float (*to)[STRIDE], const char *from, int64_t rows, int64_t k, int width)
{
    for (int i = gpu::thread(); i < rows * (K_STEP / VECTOR); i += THREADS) {
        const int row = i / (K_STEP / VECTOR), column = i % (K_STEP / VECTOR) * VECTOR;
        if (column >= width)
            continue;
        float values[VECTOR];
        load_vector<DTYPE>(values, from + bytes_of(DTYPE, row * (int64_t)HIDDEN + k + column));
        store_vector<dtype_f32>((char *)&to[row][column], values);
    }
}

/// Four steps of k.
GPU_INLINE void add_products(float &sum, const float *x, const float *w)
{
    const gpu::Words a = *(const gpu::Words *)x, b = *(const gpu::Words *)w;
    sum = gpu::fma(gpu::number(a.x), gpu::number(b.x), sum);
    sum = gpu::fma(gpu::number(a.y), gpu::number(b.y), sum);
    sum = gpu::fma(gpu::number(a.z), gpu::number(b.z), sum);
    sum = gpu::fma(gpu::number(a.w), gpu::number(b.w), sum);
}

GPU_INLINE void add_squares(float &sum, const float *x)
{
    add_products(sum, x, x);
}

/// factor / |v|, from the sum of v's squares.
GPU_INLINE float over_norm(float factor, float squares)
{
    const float norm = gpu::square_root(squares);
    return factor / (norm < LEAST_SUM ? LEAST_SUM : norm);
}

/// The logits of a tile of experts, for the block's tokens.
GPU_INLINE void score_tile(Memory &memory, const char *x, const char *w, int64_t tokens, int first)
{
    const int experts = EXPERTS - first < EXPERT_TILE ? EXPERTS - first : EXPERT_TILE;
    float sums[OWN][EACH] = {}, token_squares[OWN] = {}, expert_squares[EACH] = {};
    GPU_ROLLED for (int64_t k = 0; k < HIDDEN; k += K_STEP)
    {
        const int width = HIDDEN - k < K_STEP ? (int)(HIDDEN - k) : K_STEP;
        gpu::sync_block(); // the step before has been read
        fetch<SOURCE>(memory.x, x, tokens, k, width);
        fetch<dtype_f32>(memory.w, w + first * (int64_t)HIDDEN * 4, experts, k, width);
        gpu::sync_block();
        for (int i = 0; i < width; i += 4)
            GPU_UNROLL for (int e = 0; e < EACH; e++)
            {
                const int expert = e * gpu::WARP + gpu::lane();
                if (expert < experts)
                    GPU_UNROLL for (int t = 0; t < OWN; t++)
                        if (gpu::warp() * OWN + t < tokens)
                            add_products(sums[t][e], memory.x[gpu::warp() * OWN + t] + i, memory.w[expert] + i);
            }
        for (int i = 0; i < width && SCORE == score_cosine; i += 4) {
            GPU_UNROLL for (int e = 0; e < EACH; e++)
                if (e * gpu::WARP + gpu::lane() < experts)
                    add_squares(expert_squares[e], memory.w[e * gpu::WARP + gpu::lane()] + i);
            GPU_UNROLL for (int t = 0; t < OWN; t++)
                if (gpu::warp() * OWN + t < tokens)
                    add_squares(token_squares[t], memory.x[gpu::warp() * OWN + t] + i);
        }
    }
    GPU_UNROLL for (int t = 0; t < OWN; t++)
        GPU_UNROLL for (int e = 0; e < EACH; e++)
        {
            if (e * gpu::WARP + gpu::lane() >= experts)
                continue;
            if (SCORE == score_cosine)
                sums[t][e] = sums[t][e] * over_norm(1, token_squares[t]) * over_norm(TEMPERATURE, expert_squares[e]);
            memory.scores[gpu::warp() * OWN + t][first + e * gpu::WARP + gpu::lane()] = sums[t][e];
        }
}

// -------------------------------------------------------------------------------------------------------- the choice

/// Takes out the experts of all but the best groups.
GPU_INLINE void keep_groups(int *keys, int *group_keys)
{
    gpu::sync_warp(); // every lane's keys are there, and nobody reads the groups of the token before any more
    each_own(GROUPS, [&](int group) {
        int best = KEY_TAKEN, second = KEY_TAKEN;
        for (int i = 0; i < GROUP_SIZE; i++) {
            const int key = keys[group * GROUP_SIZE + i], less = key < best ? key : best;
            second = less > second ? less : second;
            best = key > best ? key : best;
        }
        const bool alone = GROUP_SCORE == group_score_max || GROUP_SIZE == 1;
        group_keys[group] = alone ? best : key_of(score_of(best) + score_of(second));
    });
    for (int i = 0; i < GROUPS_KEPT; i++)
        take_best(group_keys, GROUPS);
    gpu::sync_warp(); // all that was taken is marked
    each_own(EXPERTS, [&](int i) {
        if (group_keys[i / GROUP_SIZE] != KEY_TAKEN)
            keys[i] = KEY_TAKEN;
    });
}

/// Sparsemixer (Phi-3.5): the share of `best` in the softmax over the experts left whose scores are within 2% of it.
GPU_INLINE float sparse_weight(const float *scores, const int *keys, float best)
{
    float sum = 0;
    each_own(EXPERTS, [&](int i) {
        const float below = best - scores[i], size = scores[i] < 0 ? -scores[i] : scores[i];
        const bool far = below / (size < best ? best : size) > 0.02f;
        sum += far || keys[i] == KEY_TAKEN ? 0.0f : exponential(-below);
    });
    return 1.0f / (1.0f + warp_sum(sum));
}

/// From logits to scores to keys; a lane has its own experts.
GPU_INLINE void rank_experts(const Launch &args, float *scores, int *keys, int64_t token)
{
    const float *bias = HAS_BIAS ? (const float *)args.k.p[ROUTE_ARGS] : nullptr;
    const float *logit_bias = HAS_LOGIT_BIAS ? (const float *)args.k.p[ROUTE_ARGS + (HAS_BIAS ? 1 : 0)] : nullptr;
    if (HAS_LOGIT_BIAS || LOGIT_BIAS_NUMBER != 0)
        each_own(EXPERTS, [&](int i) { scores[i] += HAS_LOGIT_BIAS ? logit_bias[i] : LOGIT_BIAS_NUMBER; });
    if (SCORE == score_softmax || SCORE == score_cosine) {
        const float sum = exponentials(scores, EXPERTS);
        each_own(EXPERTS, [&](int i) { scores[i] /= sum; });
    } else if (SCORE == score_sigmoid) {
        each_own(EXPERTS, [&](int i) { scores[i] = sigmoid(scores[i], 1.0f); });
    }
    const uint32_t noise = NOISE > 0 ? noise_of_token(args, token) : 0;
    each_own(EXPERTS, [&](int i) {
        const bool biased = HAS_BIAS || BIAS_NUMBER != 0;
        const float score = biased ? scores[i] + (HAS_BIAS ? bias[i] : BIAS_NUMBER) : scores[i];
        keys[i] = key_of(NOISE > 0 ? score + noise_of_expert(noise, i) : score);
    });
}

/// One token, in one warp.
GPU_INLINE void choose(const Launch &args, float *scores, int *keys, float *chosen, int *group_keys, int64_t token)
{
    int32_t *ids = (int32_t *)args.k.p[ROUTE_IDS] + token * CHOICES;
    float *weights = (float *)args.k.p[ROUTE_WEIGHTS] + token * CHOICES;
    float sum = 0;
    rank_experts(args, scores, keys, token);
    if (GROUPS_KEPT < GROUPS)
        keep_groups(keys, group_keys);
    gpu::sync_warp(); // scores of any expert may be read from here on
    for (int i = 0; i < CHOICES; i++) {
        const int id = take_best(keys, EXPERTS);
        float score = scores[id];
        if (SCORE == score_sparsemixer)
            score = sparse_weight(scores, keys, score);
        if (gpu::lane() == i % gpu::WARP) {
            ids[i] = id;
            chosen[i] = score;
        }
        sum += score;
    }
    if (SCORE == score_softmax_after)
        sum = exponentials(chosen, CHOICES);
    else if (SCORE == score_sigmoid)
        sum += 1e-20f; // DeepSeek-V3
    else
        sum = sum < LEAST_SUM ? LEAST_SUM : sum;
    const bool divided = SCORE == score_softmax_after || (NORMALIZE && SCORE != score_sparsemixer);
    each_own(CHOICES, [&](int i) { weights[i] = (divided ? chosen[i] / sum : chosen[i]) * SCALE; });
}

GPU_KERNEL(THREADS, 1)
{
    Memory &memory = *(Memory *)gpu::shared();
    const char *w = (const char *)args.k.p[ROUTE_W];
    for (int64_t token = args.begin + gpu::block() * TOKENS; token < args.end; token += gpu::blocks() * TOKENS) {
        const int64_t tokens = args.end - token < TOKENS ? args.end - token : TOKENS;
        const char *x = (const char *)args.k.p[ROUTE_X] + bytes_of(SOURCE, token * HIDDEN);
        for (int first = 0; first < EXPERTS; first += EXPERT_TILE)
            score_tile(memory, x, w, tokens, first);
        // No barrier between the product and the choice: a warp chooses for the tokens whose scores its own lanes have
        // written; a lane reads its own experts', and the others' after a sync_warp. None after it: the next tokens' product
        // begins with one.
        for (int t = gpu::warp() * OWN; t < (gpu::warp() + 1) * OWN && t < tokens; t++)
            choose(args, memory.scores[t], memory.keys[t], memory.chosen[gpu::warp()], memory.group_keys[gpu::warp()],
                   token + t);
    }
}
