/* The CUDA library's only entry. It is opened beside the shim, before the first operator, where there are a driver
 * and a device; it hands its devices to the shim (src/device.h). */
#ifndef LINSTOCK_CUDA_H_
#define LINSTOCK_CUDA_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Compared when it is opened: changes with src/device.h. */
#define LS_CUDA_ABI 9
/* NULL, or what is wrong. Once; later calls do nothing. */
__attribute__((visibility("default"))) const char *ls_cuda_open(uint32_t abi);

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_CUDA_H_ */
