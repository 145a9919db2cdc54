// The C face of the exported Go functions; apart from callbacks.go because a file with exports may not
// define anything.
#include "_cgo_export.h"

static uint64_t hook(uint64_t id, ls_tensor grad, ls_tensor *out) { return lsGoHook(id, grad, out); }

static uint64_t backward(uint64_t id, const ls_tensor *grads, uint64_t n, const ls_tensor *saved, uint64_t ns,
                         const uint8_t *needs, ls_tensor *out, uint64_t nout) {
  return lsGoBackward(id, (ls_tensor *)grads, n, (ls_tensor *)saved, ns, (uint8_t *)needs, out, nout);
}

static uint64_t recompute(uint64_t id, const ls_tensor *inputs, uint64_t n) {
  return lsGoRecompute(id, (ls_tensor *)inputs, n);
}

const ls_callbacks ls_go_callbacks = {hook, backward, recompute};
