// What a GPU reaches at most, beside which the kernels' figures are set.
#ifndef MOE_TESTS_GPU_PEAKS_H
#define MOE_TESTS_GPU_PEAKS_H

#include <stdbool.h>

/// Dense TFLOP/s that the tensor cores reach, in bf16 or of E4M3 codes.
double measure_peak(bool fp8);
/// GB/s read and written by a copy on the device.
double measure_copy(void);

#endif
