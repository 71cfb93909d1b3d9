// The emulated instructions: decoding, the tiles, and what the processor is said to do with them. After Intel's
// "Architecture Instruction Set Extensions Programming Reference" (319433), chapter on AMX: palette 1 (eight tiles of 16
// rows of 64 bytes), LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TILERELEASE, TDPBF16PS. What it calls an exception (a
// shape that does not fit, tiles without configuration) is SIGILL here, which ends the process.
#include "tests/amx/amx.h"
#include "runtime/device/machine.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <ucontext.h>

enum { TILES = 8, MOST_ROWS = 16, ROW_BYTES = 64, CONFIGURATION = 64 };

struct tiles {
    bool configured;
    uint8_t rows[TILES];
    uint16_t row_bytes[TILES];
    uint8_t data[TILES][MOST_ROWS][ROW_BYTES];
    struct amx_counts counts;
};

static _Thread_local struct tiles tiles;
static _Atomic uint64_t all_products;
static _Atomic bool pretends;

struct amx_counts amx_counts(void)
{
    struct amx_counts counts = tiles.counts;
    counts.configured = tiles.configured;
    return counts;
}

uint64_t amx_all_products(void)
{
    return atomic_load(&all_products);
}

void amx_pretend(bool has_tiles)
{
    atomic_store(&pretends, has_tiles && amx_runs());
}

bool __real_machine_runs(const char *level);
bool __wrap_machine_runs(const char *level);
bool __wrap_machine_runs(const char *level)
{
    return __real_machine_runs(level) || (atomic_load(&pretends) && !strcmp(level, "amx"));
}

#if defined(__x86_64__)
#include <immintrin.h>

static float number(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

// Products and sums flush what is denormal, whatever the program has set.
static unsigned begin_flushing(void)
{
    unsigned before = _mm_getcsr();
    _mm_setcsr(0x1f80 | 1 << 15 | 1 << 6); // no exceptions, nearest even, flush to zero, denormals are zero
    return before;
}

__attribute__((target("fma"))) void amx_product_rule(float *sums, const uint16_t *a, const uint16_t *b, int rows,
                                                     int pairs)
{
    unsigned before = begin_flushing();
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < 16; n++) {
            volatile float even = 0, odd = 0, both; // so that nothing moves beyond the changes of mode
            for (int k = 0; k < pairs; k++) {
                const uint16_t *of_a = a + m * 2 * pairs + 2 * k, *of_b = b + (k * 16 + n) * 2;
                even = __builtin_fmaf(number(of_a[0]), number(of_b[0]), even);
                odd = __builtin_fmaf(number(of_a[1]), number(of_b[1]), odd);
            }
            both = even + odd;
            sums[m * 16 + n] += both;
        }
    _mm_setcsr(before);
}

// The same, a row of sums at a time.
__attribute__((target("avx512f"))) static void multiply(uint8_t (*sums)[ROW_BYTES], uint8_t (*a)[ROW_BYTES],
                                                        uint8_t (*b)[ROW_BYTES], int rows, int pairs)
{
    unsigned before = begin_flushing();
    for (int m = 0; m < rows; m++) {
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (int k = 0; k < pairs; k++) {
            uint16_t of_a[2];
            memcpy(of_a, a[m] + 4 * k, 4);
            __m512i of_b = _mm512_loadu_si512(b[k]);
            __m512 low = _mm512_castsi512_ps(_mm512_slli_epi32(of_b, 16));
            __m512 high = _mm512_castsi512_ps(_mm512_and_si512(of_b, _mm512_set1_epi32((int)0xffff0000)));
            even = _mm512_fmadd_ps(_mm512_set1_ps(number(of_a[0])), low, even);
            odd = _mm512_fmadd_ps(_mm512_set1_ps(number(of_a[1])), high, odd);
        }
        _mm512_storeu_ps(sums[m], _mm512_add_ps(_mm512_loadu_ps(sums[m]), _mm512_add_ps(even, odd)));
    }
    _mm_setcsr(before);
}

// ---------------------------------------------------------------------------------------------- instructions

enum { OF_CONFIGURATION = 0x49, OF_MEMORY = 0x4b, OF_PRODUCT = 0x5c };
enum { PREFIX_NONE, PREFIX_66, PREFIX_F3, PREFIX_F2 };

struct instruction {
    unsigned opcode, prefix;  // of the map 0f38
    unsigned reg, rm, vvvv;
    bool memory;
    uint8_t *address; // of memory operands: the first row
    int64_t stride;
    const uint8_t *end;
};

static const int registers[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static int64_t displacement(const uint8_t **at, unsigned mode, bool wide)
{
    int32_t value = 0;
    if (mode == 1)
        value = (int8_t)*(*at)++;
    else if (mode == 2 || wide) {
        memcpy(&value, *at, 4);
        *at += 4;
    }
    return value;
}

/// An address: a base, an index with its scale, which of tiles is the distance between rows, and a displacement.
static void decode_address(const greg_t *gregs, const uint8_t *at, unsigned mode, unsigned x, unsigned b,
                           struct instruction *in)
{
    int64_t base = 0;
    bool relative = false;
    if ((in->rm & 7) == 4) {
        unsigned sib = *at++, index = (sib >> 3 & 7) | x, of_base = sib & 7;
        if (index != 4)
            in->stride = gregs[registers[index]] * (1 << (sib >> 6));
        bool none = of_base == 5 && mode == 0;
        if (!none)
            base = gregs[registers[of_base | b]];
        base += displacement(&at, mode, none);
    } else {
        relative = (in->rm & 7) == 5 && mode == 0;
        if (!relative)
            base = gregs[registers[in->rm]];
        base += displacement(&at, mode, relative);
    }
    if (relative)
        base += (int64_t)(uintptr_t)at; // of the next instruction: no immediate follows
    if (in->opcode == OF_CONFIGURATION)
        base += in->stride; // an index like any
    in->address = (uint8_t *)(uintptr_t)base;
    in->end = at;
}

/// False: nothing with tiles.
static bool decode(const greg_t *gregs, struct instruction *in)
{
    const uint8_t *at = (const uint8_t *)(uintptr_t)gregs[REG_RIP];
    if (at[0] != 0xc4 || (at[1] & 0x1f) != 2 || (at[2] & 0x84) != 0) // three bytes of VEX, map 0f38, W 0, 128 bits
        return false;
    unsigned r = at[1] & 0x80 ? 0 : 8, x = at[1] & 0x40 ? 0 : 8, b = at[1] & 0x20 ? 0 : 8, mode = at[4] >> 6;
    *in = (struct instruction){.opcode = at[3], .prefix = at[2] & 3, .vvvv = ~(unsigned)at[2] >> 3 & 15,
                               .reg = (at[4] >> 3 & 7) | r, .rm = (at[4] & 7) | b, .memory = mode != 3, .end = at + 5};
    if (in->memory)
        decode_address(gregs, at + 5, mode, x, b, in);
    return true;
}

static void release(void)
{
    tiles.configured = false;
    memset(tiles.rows, 0, sizeof tiles.rows);
    memset(tiles.row_bytes, 0, sizeof tiles.row_bytes);
    memset(tiles.data, 0, sizeof tiles.data);
}

static bool zero_bytes(const uint8_t *bytes, size_t count)
{
    while (count && !bytes[count - 1])
        count--;
    return count == 0;
}

static bool configure(const uint8_t *from)
{
    release();
    tiles.counts.configurations++;
    if (from[0] != 1 || !zero_bytes(from + 1, 15) || !zero_bytes(from + 32, 16) || !zero_bytes(from + 56, 8))
        return from[0] == 0;
    for (int i = 0; i < TILES; i++) {
        memcpy(&tiles.row_bytes[i], from + 16 + 2 * i, 2);
        tiles.rows[i] = from[48 + i];
        if (tiles.rows[i] > MOST_ROWS || tiles.row_bytes[i] > ROW_BYTES || !tiles.rows[i] != !tiles.row_bytes[i])
            return false;
    }
    return tiles.configured = true;
}

static void store_configuration(uint8_t *to)
{
    memset(to, 0, CONFIGURATION);
    to[0] = tiles.configured;
    memcpy(to + 16, tiles.row_bytes, sizeof tiles.row_bytes);
    memcpy(to + 48, tiles.rows, sizeof tiles.rows);
}

static bool usable(unsigned tile)
{
    return tiles.configured && tile < TILES && tiles.rows[tile];
}

static bool load_rows(const struct instruction *in)
{
    if (!usable(in->reg))
        return false;
    memset(tiles.data[in->reg], 0, sizeof tiles.data[in->reg]);
    for (int row = 0; row < tiles.rows[in->reg]; row++)
        memcpy(tiles.data[in->reg][row], in->address + row * in->stride, tiles.row_bytes[in->reg]);
    tiles.counts.loads++;
    return true;
}

static bool store_rows(const struct instruction *in)
{
    if (!usable(in->reg))
        return false;
    for (int row = 0; row < tiles.rows[in->reg]; row++)
        memcpy(in->address + row * in->stride, tiles.data[in->reg][row], tiles.row_bytes[in->reg]);
    tiles.counts.stores++;
    return true;
}

static bool add_product(unsigned sums, unsigned a, unsigned b)
{
    if (!usable(sums) || !usable(a) || !usable(b) || sums == a || sums == b || a == b)
        return false;
    if (tiles.rows[sums] != tiles.rows[a] || tiles.row_bytes[a] != 4 * tiles.rows[b] ||
        tiles.row_bytes[sums] != tiles.row_bytes[b] || tiles.row_bytes[sums] % 4)
        return false;
    multiply(tiles.data[sums], tiles.data[a], tiles.data[b], tiles.rows[sums], tiles.rows[b]);
    for (int row = 0; row < tiles.rows[sums]; row++)
        memset(tiles.data[sums][row] + tiles.row_bytes[sums], 0, (size_t)(ROW_BYTES - tiles.row_bytes[sums]));
    tiles.counts.products++;
    atomic_fetch_add(&all_products, 1);
    return true;
}

static bool perform(const struct instruction *in)
{
    switch (in->opcode << 8 | in->prefix) {
    case OF_CONFIGURATION << 8 | PREFIX_NONE:
        if (in->memory)
            return configure(in->address);
        release();
        return in->reg == 0 && in->rm == 0;
    case OF_CONFIGURATION << 8 | PREFIX_66:
        store_configuration(in->address);
        return in->memory;
    case OF_CONFIGURATION << 8 | PREFIX_F2:
        if (in->memory || in->rm || !usable(in->reg))
            return false;
        memset(tiles.data[in->reg], 0, sizeof tiles.data[in->reg]);
        return true;
    case OF_MEMORY << 8 | PREFIX_F2:
    case OF_MEMORY << 8 | PREFIX_66: // with a hint
        return in->memory && (in->rm & 7) == 4 && load_rows(in);
    case OF_MEMORY << 8 | PREFIX_F3:
        return in->memory && (in->rm & 7) == 4 && store_rows(in);
    case OF_PRODUCT << 8 | PREFIX_F3:
        return !in->memory && add_product(in->reg, in->rm, in->vvvv);
    default:
        return false;
    }
}

static void on_illegal(int signal_number, siginfo_t *info, void *context)
{
    (void)info;
    greg_t *gregs = ((ucontext_t *)context)->uc_mcontext.gregs;
    struct instruction in;
    if (decode(gregs, &in) && perform(&in))
        gregs[REG_RIP] = (greg_t)(uintptr_t)in.end;
    else
        signal(signal_number, SIG_DFL); // and it is met again
}

static bool emulated;

static void install(void)
{
    struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO};
    emulated = !__real_machine_runs("amx") && __real_machine_runs("bf16") && !sigaction(SIGILL, &action, NULL);
}

bool amx_emulated(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
    return emulated;
}

bool amx_runs(void)
{
    return amx_emulated() || __real_machine_runs("amx");
}
#else
void amx_product_rule(float *sums, const uint16_t *a, const uint16_t *b, int rows, int pairs)
{
    (void)sums, (void)a, (void)b, (void)rows, (void)pairs;
}

bool amx_emulated(void)
{
    return false;
}

bool amx_runs(void)
{
    return false;
}
#endif
