// What a slot holds on the wire: header, row records. Written by `bin` and the executor, read by `fan_out`. Slots of an
// exchange lie in its send and recv buffer without gaps, in rank order, the own rank left out; slots.h says where.
#ifndef MOE_MESSAGES_H
#define MOE_MESSAGES_H

#include <stdint.h>

#include "words.h"

/// Dispatch and combine header. After it, in a base dispatch, overflow[ranks] (u32): rows of this source that found no
/// slot at each rank, so that every rank knows the whole matrix and all agree on grants and rounds without a message
/// more. The header with its vector is padded to 64 bytes (moe_header_bytes).
struct moe_message {
    uint32_t rows;
    uint32_t pairs;             // (row, expert) pairs in the message: a conservation counter
    uint32_t source;
    uint32_t exchange;
    uint64_t step;
    uint64_t reserved;
};

static inline int64_t moe_header_bytes(int64_t ranks)
{
    return ((int64_t)sizeof(struct moe_message) + ranks * 4 + 63) / 64 * 64;
}

/// An exchange in chunks: a slot begins with a header for each. In a dispatch the first has, behind the overflow vector,
/// cut[cuts] (u32): of all rows of the slot, those up to the end of the tokens of each chunk in which it is answered, then of
/// each piece in which experts take them. To another node by a relay: the rows for the node.
static inline int64_t moe_headers_bytes(int64_t ranks, int64_t chunks, int64_t cuts)
{
    return (chunks < 2 ? 1 : chunks) * moe_header_bytes(ranks + cuts);
}

/// A row record's meta: `choices` entries, unused ones have local -1. It lies at row_bytes - meta_bytes of the record,
/// meta_bytes = choices * sizeof(struct moe_row_meta).
struct moe_row_meta {
    int32_t local;              // local expert id at the destination
    float weight;
};

/// Two hops (plan_exchange.node > 0): a mark before each record's meta says which of the rows that go to the node it is.
struct moe_row_mark {
    uint32_t row;               // number among the source's rows for the node
    uint32_t first;             // 1: the first of its records, whose data is sent
    uint64_t reserved;
};

/// Rows and pairs that a relayed message carries for one rank of the node.
struct moe_relay_count {
    uint32_t rows, pairs;
};

/// Bytes of a row's data in a wire format: codes, then one scale a block (the last block may be partial).
static inline int64_t moe_wire_bytes(uint32_t dtype, int64_t width, int64_t block, uint32_t scale)
{
    int64_t blocks = block > 0 ? (width + block - 1) / block : 0;
    return width * dtype_bytes(dtype) + blocks * (scale == scale_type_ue8m0 ? 1 : scale == scale_type_f32 ? 4 : 0);
}

/// Bytes of a row record: data (with its scales), then meta (0 in a combine), 16-byte aligned.
static inline int64_t moe_record_bytes(int64_t data_bytes, int64_t meta_bytes)
{
    return (data_bytes + 7) / 8 * 8 + meta_bytes + 15 - ((data_bytes + 7) / 8 * 8 + meta_bytes + 15) % 16;
}

#endif
