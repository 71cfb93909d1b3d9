// What a warp does as one: shuffles, ldmatrix, mma.sync. Lanes give their records; the last one to come computes for all.
#include <string.h>

#include "block.h"

namespace host {

static void shuffle(Fiber *const *lanes)
{
    for (int l = 0; l < LANES; l++) {
        host_shuffle_lane *own = (host_shuffle_lane *)lanes[l]->lane_record;
        own->result = ((const host_shuffle_lane *)lanes[own->lane & (LANES - 1)]->lane_record)->value;
    }
}

static void load_matrices(Fiber *const *lanes)
{
    const Block *block = running;
    const char *rows[LANES];
    for (int l = 0; l < LANES; l++) {
        rows[l] = (const char *)((const host_matrices_lane *)lanes[l]->lane_record)->row;
        if ((uintptr_t)rows[l] % 16 || rows[l] < block->shared || rows[l] + 16 > block->shared + block->shared_bytes) {
            report(lanes[l]->at, "thread %d gives ldmatrix a row that is not aligned or not in shared memory",
                   lanes[l]->place.thread);
            rows[l] = block->shared;
        }
        check_access(rows[l], 16, false, lanes[l]->at, lanes[l], (uint32_t)lanes[l]->place.thread, 0);
    }
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++)
            memcpy(&((const host_matrices_lane *)lanes[l]->lane_record)->result[i], rows[8 * i + l / 4] + l % 4 * 4, 4);
}

/// A word has two k of 16 bits, or four codes; a product eight words along k.
static void multiply(Fiber *const *lanes, enum host_operand type)
{
    float a[16][32], b[32][8], d[16][8];
    const int each = type == HOST_E4M3 ? 4 : 2;
    for (int l = 0; l < LANES; l++) {
        const host_multiply_lane *own = (const host_multiply_lane *)lanes[l]->lane_record;
        int row = l / 4, column = l % 4 * each;
        for (int i = 0; i < 4; i++)
            host_widen(own->a[i], type, &a[row + i % 2 * 8][column + i / 2 * 4 * each]);
        for (int i = 0; i < 2; i++) {
            float numbers[4];
            host_widen(own->b[i], type, numbers);
            for (int j = 0; j < each; j++)
                b[column + 4 * each * i + j][row] = numbers[j];
        }
    }
    for (int row = 0; row < 16; row++) {
        float sum[8] = {};
        for (int k = 0; k < 8 * each; k++)
            for (int column = 0; column < 8; column++)
                sum[column] += a[row][k] * b[k][column];
        memcpy(d[row], sum, sizeof sum);
    }
    for (int l = 0; l < LANES; l++) {
        float *own = ((const host_multiply_lane *)lanes[l]->lane_record)->d;
        for (int i = 0; i < 4; i++)
            own[i] += d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
    }
}

void complete_warp(int op, Fiber *const *lanes)
{
    switch (op) {
    case HOST_SYNC:
        order_all(lanes, LANES);
        break;
    case HOST_SHUFFLE:
        shuffle(lanes);
        break;
    case HOST_LOAD_MATRICES:
        load_matrices(lanes);
        break;
    case HOST_MULTIPLY_BF16:
    case HOST_MULTIPLY_F16:
    case HOST_MULTIPLY_E4M3:
        multiply(lanes, op == HOST_MULTIPLY_BF16 ? HOST_BF16 : op == HOST_MULTIPLY_F16 ? HOST_F16 : HOST_E4M3);
        break;
    }
}

} // namespace host

using namespace host;

extern "C" void host_warp(enum host_warp_op op, void *lane)
{
    Block *block = running;
    Fiber *self = block->current;
    const void *at = __builtin_return_address(0);
    int number = self->place.thread / LANES;
    Warp *warp = &block->warps[(size_t)number];
    Fiber **lanes = &block->fibers[(size_t)number * LANES];
    self->lane_record = lane;
    self->at = at;
    self->op = op;
    if (++warp->arrived < LANES) {
        wait_for(Waiting::warp, op, at);
        return;
    }
    warp->arrived = 0;
    for (int l = 0; l < LANES; l++)
        if (lanes[l]->op != (int)op) {
            report(at, "lanes of a warp meet in different operations (threads %d and %d)", self->place.thread,
                   lanes[l]->place.thread);
            return; // the others stay where they are: the launch ends as a deadlock
        }
    complete_warp(op, lanes);
    for (int l = 0; l < LANES; l++)
        if (lanes[l] != self)
            make_ready(lanes[l]);
}
