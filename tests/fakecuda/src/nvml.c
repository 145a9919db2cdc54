// NVML is opened by name, for the list of processes in an out-of-memory error.
#include <stdio.h>
#include <string.h>

#include "fake.h"

#define API __attribute__((visibility("default")))

API int nvmlInit_v2(void) { return 0; }
API int nvmlShutdown(void) { return 0; }
API const char *nvmlErrorString(int e) { return e == 0 ? "Success" : "a fake NVML error"; }
API int nvmlSystemGetCudaDriverVersion_v2(int *v) {
  *v = 13000;
  return 0;
}
API int nvmlDeviceGetCount_v2(unsigned *n) {
  *n = (unsigned)fakecuda_get()->devices;
  return 0;
}
// A handle is the device's number plus 1.
API int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {
  *h = (char *)0 + i + 1;
  return 0;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **h) {
  unsigned bus = 1;
  sscanf(id, "%*x:%x", &bus);
  *h = (char *)0 + bus;
  return 0;
}
API int nvmlDeviceGetHandleByUUID(const char *id, void **h) {
  (void)id;
  *h = (char *)0 + 1;
  return 0;
}
API int nvmlDeviceGetUUID(void *h, char *s, unsigned n) {
  snprintf(s, n, "GPU-fake-%p", h);
  return 0;
}
API int nvmlDeviceGetComputeRunningProcesses(void *h, unsigned *n, void *infos) {
  (void)h, (void)infos;
  *n = 0;
  return 0;
}
API int nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *status) {
  (void)a, (void)b, (void)what;
  *status = 0;
  return 0;
}
static int unsupported(void) { return 3; }
API int nvmlDeviceGetGpuFabricInfoV(void *h, void *info) {
  (void)h, (void)info;
  return unsupported();
}
API int nvmlDeviceGetNvLinkRemoteDeviceType(void *h, unsigned link, void *type) {
  (void)h, (void)link, (void)type;
  return unsupported();
}
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned link, void *info) {
  (void)h, (void)link, (void)info;
  return unsupported();
}
