/* Stands in for NCCL's header, which libtorch's wheels lack: what ProcessGroupNCCL.hpp needs of it. The library
 * itself is called by libtorch alone. */
#ifndef LINSTOCK_NCCL_H_
#define LINSTOCK_NCCL_H_

#include <stdint.h>

/* The oldest that libtorch allows, so that its headers ask for no more. */
#define NCCL_MAJOR 2
#define NCCL_VERSION(major, minor, patch) ((major) * 10000 + (minor) * 100 + (patch))
#define NCCL_VERSION_CODE NCCL_VERSION(2, 23, 0)

typedef struct ncclComm *ncclComm_t;
#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum { ncclSuccess = 0, ncclInProgress = 7 } ncclResult_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;
typedef enum {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt64 = 4,
  ncclHalf = 6,
  ncclFloat = 7,
  ncclDouble = 8,
  ncclBfloat16 = 9
} ncclDataType_t;

#define NCCL_SPLIT_NOCOLOR -1

/* Part of ProcessGroupNCCL::Options. It grows with NCCL's versions: 104 bytes in 2.30. The memory of an Options is
 * allocated here; libtorch's constructor fills it, and only libtorch reads it and destroys it. So it must be as
 * large as any version's, and its members have no use. netName is for a function of the header that is not called.
 */
typedef struct {
  const char *netName;
  char more[1016];
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER \
  {}

#ifdef __cplusplus
extern "C" {
#endif
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
const char *ncclGetErrorString(ncclResult_t result);
#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_NCCL_H_ */
