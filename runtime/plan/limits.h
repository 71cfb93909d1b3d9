// Limits that keep every size of a plan inside 64 bits: rows * bytes * ranks < 2^62. plan_validate enforces them.
#ifndef MOE_LIMITS_H
#define MOE_LIMITS_H

#define MOE_MAX_RANKS 1024
#define MOE_MAX_AXES 8
#define MOE_MAX_EXPERTS 65536
#define MOE_MAX_CHOICES 512
#define MOE_MAX_TOKENS (INT64_C(1) << 24)       // per rank
#define MOE_MAX_WIDTH (INT64_C(1) << 20)        // elements of a row
#define MOE_MAX_ROW_BYTES (INT64_C(1) << 24)    // of a record, or stride
#define MOE_MAX_POOL_ROWS (INT64_C(1) << 28)
#define MOE_MAX_PAIRS INT32_MAX                 // rows, and pairs of row and expert, that control data of one launch numbers
#define MOE_MAX_ROUNDS (1u << 20)
#define MOE_MAX_LAYERS 4096
#define MOE_MAX_SHARES (INT64_C(1) << 24)       // plan_part.total
#define MOE_MAX_CHUNKS 8                        // of an exchange, `split combine`, `split dispatch`
#define MOE_MAX_WAVES 16                        // of experts, `split experts`
#define MOE_MAX_BYTES (INT64_C(1) << 46)        // arena, buffer, parameter
#define MOE_MAX_UNITS (INT64_C(1) << 24)        // per kernel; per local expert for mlp_up
#define MOE_MAX_SCRATCH (INT64_C(1) << 30)
#define MOE_MAX_PRIORITY 1000                   // of a stream, either way
#define MOE_MAX_SEMAPHORES (1u << 20)
#define MOE_MAX_ARGS 26                         // fan_out: eight, and the arrived slots of earlier waves
#define MOE_MAX_MAPS 3                          // tensor maps of a launch: rows, the same by eights, weights
#define MOE_MAX_WIRES 4                         // formats of an exchange
#define MOE_MAX_STREAMS 64                      // per rank

#endif
