// What device.h is for every chip, for the instructions that sm_90a adds: barriers in shared memory, boxes of a tensor
// copied by the tensor memory accelerator, products by a warpgroup (four warps side by side, the first a multiple of four).
// Two backs as there: hopper_ptx.h and hopper_host.h. GPU_MAPS, defined before device.h is included, is how many tensor
// maps a launch brings along: args.maps[0 .. GPU_MAPS).
//
// Copies by boxes and warpgroup products work on shared memory through another path, the asynchronous proxy, than ordinary
// loads and stores, and take effect at any time until waited for.
//
//   Barrier                               eight bytes of shared memory. A phase ends when its arrivals and its bytes have come
//   void barrier_init(b, arrivals)        by one thread, before the first phase
//   void publish()                        what this thread has written to shared memory, barriers included, is there for the
//                                         asynchronous proxy; a barrier of the block then shows it to other threads
//   void barrier_arrive(b)                one arrival; orders what this thread did before it
//   void barrier_expect(b, bytes)         one arrival, and the phase waits for so many bytes more; before their copies start
//   void barrier_wait(b, parity)          until the phase of that parity has ended; orders as the arrivals say. Phases are
//                                         numbered from 0; waiting for parity 1 in phase 0 goes on at once
//   void copy_box(to, map, b, x0, x1)     a box of the map's tensor from element x0 of row x1 on, its rows of 128 bytes to `to`
//   void copy_box(to, map, b, x0 .. x3)   (1024-byte aligned), each 16-byte chunk c of row r at place c ^ r % 8; elements
//                                         outside the tensor are zeros; all bytes of the box count for b's phase. The map
//                                         has two or four extents
//   void sync_threads<N>(id)              barrier `id` (1..15) of N threads, whole warps; orders memory among them
//   void take_registers<N>(),             all threads of a warpgroup have N registers from here on: more than before, or fewer
//        give_registers<N>()
//   Matrix matrix_at(p)                   rows of 128 bytes as copy_box lays them, from p (1024-byte aligned) on
//   Matrix matrix_k(m, bytes)             the same rows from another byte (a multiple of 32) on
//   void multiply_begin()                 before the first product, and before any into sums that this thread has touched
//   void multiply_group<HALF, N>(d, a, b, d = A B^T, d += A B^T when `add`: A 64 rows, B N rows, 8, 16, 24, 32, 64 or 128, k 16 of
//        add)                             bf16, or f16. Warp w of the four has rows 16 w .. 16 w + 15; d[n][i], n < N / 8, as
//                                         `multiply` has them, columns from 8 n
//   void multiply_group_codes<N>(d, a, b, the same of E4M3 codes, k 32: as many bytes
//        add)
//   void multiply_commit()                products since the last commit are a group
//   void multiply_wait<N>()               all but this thread's last N groups are done: its sums may be read, and what its
//                                         warp's part of the products read may be overwritten
//   void multiply_end(d)                  sums d are touched from here on only (an order for the compiler)
#ifndef MOE_HOPPER_H
#define MOE_HOPPER_H

#include "device.h"

#ifdef __CUDACC_RTC__
#include "hopper_ptx.h"
#else
#include "hopper_host.h"
#endif

#endif
