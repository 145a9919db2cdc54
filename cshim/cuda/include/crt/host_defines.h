/* Stands in for the file of this name in the wheel nvidia-cuda-crt, the only one that the headers of
 * nvidia-cuda-runtime (which libtorch comes with) lack for a plain C++ compiler: what it would define for one.
 * Searched after all other directories, so a CUDA toolkit's own is used if there is one. */
#ifndef LINSTOCK_CRT_HOST_DEFINES_H_
#define LINSTOCK_CRT_HOST_DEFINES_H_

#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDAAPI
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __inline_hint__
#define __launch_bounds__(...)

#endif /* LINSTOCK_CRT_HOST_DEFINES_H_ */
