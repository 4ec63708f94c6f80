#pragma once

// Rule code is shared by the CPU reference and the CUDA kernels, so that both decide alike.
#ifdef __CUDACC__
#define KVSIM_HD __host__ __device__
#else
#define KVSIM_HD
#endif
